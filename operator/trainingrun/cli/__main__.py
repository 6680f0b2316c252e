"""`python -m trainingrun.cli`."""

from trainingrun.cli.main import app

if __name__ == "__main__":
    app(prog_name="trainingrun")
