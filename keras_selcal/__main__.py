"""`python -m keras_selcal` runs the command line of `keras_selcal.cli`."""

from keras_selcal.cli import main

if __name__ == "__main__":
    main()
