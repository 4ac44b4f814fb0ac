"""What a user holds: configuration, statistics, and how drafts are made."""

import threading
import warnings
import weakref

from ..lookup.config import LookupConfig
from ..lookup.cost import CostModel
from .stats import Stats


class DraftlessWarning(UserWarning):
    """Something runs plainly, or not as asked; said once for each reason."""


class Speculation:
    """Settings and statistics shared by the two ways in; owns the learned cost of forwards.

    Attributes
    ----------
    config : LookupConfig
    stats : Stats
        All calls since `reset`.
    last : Stats or None
        The call that ended last.
    cost : CostModel
        What a forward of some width costs, learned over calls.
    """

    def __init__(self, model, config=None, drafter=None, cost=None):
        self._model = weakref.ref(model)
        self._lock = threading.RLock()  # a finalizer may end a call while this thread holds it
        self._said = set()
        self.stats = Stats()
        self.last: Stats | None = None
        self.configure(config, drafter, cost)

    def configure(self, config=None, drafter=None, cost=None) -> None:
        """Replace the configuration (and the drafter's factory, and the cost model); statistics stay.

        Parameters
        ----------
        config : LookupConfig or None
            None for the defaults.
        drafter : callable or None
            `LookupConfig` to `Drafter`, called once for every `generate` call. None for the lookup.
        cost : CostModel or None
            None keeps the one at hand, or makes one for the model's device.
        """
        self.config = checked_config(config)
        if drafter is not None and not callable(drafter):
            raise TypeError(
                f"drafter must be a callable, from a LookupConfig to a Drafter; found {drafter!r}"
            )
        if cost is not None and not isinstance(cost, CostModel):
            raise TypeError(f"cost must be a CostModel or None; found {cost!r}")
        self.cost = cost or getattr(self, "cost", None) or CostModel(self._model().device.type)
        self._factory = drafter

    def new_drafter(self, config):
        """Return a drafter for one call."""
        if self._factory is not None:
            return self._factory(config)
        from ..lookup.drafter import LookupDrafter

        return LookupDrafter(config, self.cost)

    @property
    def uses_lookup(self) -> bool:
        """Whether drafts come from the lookup, not from a drafter of the user's own."""
        return self._factory is None

    def reset(self) -> None:
        """Forget the statistics; what was learned about the cost of forwards stays."""
        with self._lock:
            self.stats, self.last = Stats(), None

    def ended(self, call: Stats) -> None:
        """Count a call that has ended."""
        with self._lock:
            self.last = call
            self.stats.add(call)

    def say_once(self, message: str) -> None:
        """Warn, but only the first time."""
        with self._lock:
            if message in self._said:
                return
            self._said.add(message)
        warnings.warn(message, DraftlessWarning, stacklevel=2)


class Handle(Speculation):
    """A model that drafts by lookup: returned by `attach`, undone by `detach`."""

    def detach(self) -> None:
        """Leave the model as it was; see `draftless.detach`."""
        from .attach import detach

        model = self._model()
        if model is not None:
            detach(model)

    def __repr__(self) -> str:
        model = self._model()
        return f"Handle({type(model).__name__ if model is not None else 'freed model'}, {self.config})"


def checked_config(config) -> LookupConfig:
    """Return the configuration, the default one for None."""
    if config is None:
        return LookupConfig()
    if not isinstance(config, LookupConfig):
        raise TypeError(
            f"config must be a LookupConfig or None; found {config!r}; try LookupConfig.from_dict(...)"
        )
    return config
