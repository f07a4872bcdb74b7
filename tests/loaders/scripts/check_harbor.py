"""Validate every document of a folder with harbor. Runs in the environment of the loader `harbor`.

check_harbor.py FOLDER
"""

import json
import sys
from pathlib import Path

from harbor.utils.trajectory_validator import TrajectoryValidator

found = {}
for file in sorted(Path(sys.argv[1]).iterdir()):
    validator = TrajectoryValidator()
    validator.validate(file)
    found[file.name] = validator.get_errors()
json.dump(found, sys.stdout)
