"""`python -m numamirror`: the same as the command `numamirror`."""

from __future__ import annotations

from numamirror.cli import main_and_exit

if __name__ == "__main__":
    main_and_exit()
