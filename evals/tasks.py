"""What the demo lets a model write: an edit, a summary, a quotation and a story."""

from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Task:
    """One prompt.

    Attributes
    ----------
    name : str
    user : str
        What is asked.
    system : str
        A system message; empty for the model's own.
    prefill : str
        How the answer begins: part of the prompt, in the assistant's turn.
    max_new_tokens : int
    """

    name: str
    user: str
    system: str = ""
    prefill: str = ""
    max_new_tokens: int = 256

    def encode(self, tokenizer):
        """Return the prompt's `input_ids` and `attention_mask`, int64 tensors of shape (1, length).

        The chat template is used where the tokenizer has one. A template that refuses
        system messages finds the system message in front of the user's.
        """
        chats = bool(tokenizer.chat_template)
        text = (self._chat(tokenizer) if chats else self._plain_text()) + self.prefill
        found = tokenizer(text, return_tensors="pt", add_special_tokens=not chats)
        return {name: found[name] for name in ("input_ids", "attention_mask")}

    def _plain_text(self):
        return "\n\n".join(part for part in (self.system, self.user) if part)

    def _chat(self, tokenizer):
        from jinja2 import TemplateError

        def filled(*messages):
            return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)

        user = {"role": "user", "content": self.user}
        if not self.system:
            return filled(user)
        try:
            return filled({"role": "system", "content": self.system}, user)
        except TemplateError:
            return filled({"role": "user", "content": self._plain_text()})


def tasks() -> list[Task]:
    """Return the demo's four tasks, worded so that the small default model copes."""
    return [_edit(), _summary(), _quote(), _story()]


def _edit():
    file = f"```python\n{_data('edit.py.txt')}```"
    ask = "Rename the class `Basket` to `Cart` in this file. Reply with the whole file and nothing else."
    return Task("edit", f"{file}\n\n{ask}", prefill="```python\n", max_new_tokens=900)


def _summary():
    system = (
        "Give a concise, objective summary of the input text in at most three sentences, "
        "with the main facts and without opinions."
    )
    return Task("summary", _data("summary.txt"), system, max_new_tokens=200)


def _quote():
    ask = "Question: Who was Marta Lindqvist? Quote what the text says about her."
    prefill = 'The text says: "The last keeper was'
    return Task("quote", f"{_data('quote.txt')}\n{ask}", prefill=prefill, max_new_tokens=150)


def _story():
    ask = "Write the first page of a novel about a gardener on Mars."
    return Task("story", ask, "You are a novelist.", max_new_tokens=256)


def _data(name):
    return resources.files(__package__).joinpath("data", name).read_text(encoding="utf-8")
