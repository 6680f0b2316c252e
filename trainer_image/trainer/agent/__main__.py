"""`python -m trainer.agent`: everything it needs is in its environment (`trainer.agent.settings`)."""

import logging
import os

from trainer.agent.main import main

if __name__ == "__main__":
    code = main()
    logging.shutdown()
    # Threads that wait for membership, and whatever a library left behind, must not hold up the end.
    os._exit(code)
