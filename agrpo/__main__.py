"""`python -m agrpo` is `agrpo`."""

from agrpo.cli import main

if __name__ == "__main__":
    main()
