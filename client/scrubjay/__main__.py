"""The program: the `scrubjay` command, and `python -m scrubjay`."""

from __future__ import annotations


def main() -> int:
    """Run the command line of this process; Ctrl-C while the commands are imported ends it without a traceback."""
    try:
        from scrubjay import cli  # noqa: PLC0415

        return cli.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
