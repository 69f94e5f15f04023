"""`python -P -m prorl_celery.testing.scripted`."""

import sys

from prorl_celery.testing.scripted.command import main

sys.exit(main())
