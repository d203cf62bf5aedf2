"""`python -m attnspec` is the `attnspec` command."""

from attnspec.cli.main import main

if __name__ == "__main__":
    main()
