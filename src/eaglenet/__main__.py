"""`python -m eaglenet`."""

from eaglenet.cli.main import main

if __name__ == "__main__":
    main()
