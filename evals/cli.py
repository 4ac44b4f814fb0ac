"""The console script `draftless`: says what to install where click or rich is missing."""

import sys


def main():
    """Run the command line; its subcommands are in `commands.py`."""
    try:
        from .commands import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f'the command line needs {error.name}; run\n    pip install "draftless[demo]"')
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a pipe's encoding may know less than a model writes
    cli(prog_name="draftless")


if __name__ == "__main__":
    main()
