"""python -m hf_ess: the same as the console script, for launchers that take a module."""

from hf_ess.cli.main import main

if __name__ == "__main__":
    main()
