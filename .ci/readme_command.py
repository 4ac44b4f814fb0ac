"""Print the command that README shows under a heading, so that what is tested is what is written."""

import re
import sys
from pathlib import Path

readme = (Path(__file__).parent.parent / "README.md").read_text()
found = re.search(rf"<!-- command: {re.escape(sys.argv[1])} -->\s*```\w*\n(.*?)```", readme, re.DOTALL)
if found is None:
    sys.exit(f"README.md has no command marked {sys.argv[1]!r}")
sys.stdout.write(found.group(1))
