"""Load a file with `datasets` and print what came out, as JSON. Runs in the environment of the loader `trl`.

read_datasets.py parquet|json FILE CACHE
"""

import json
import sys

import datasets

kind, file, cache = sys.argv[1:]
loaded = datasets.load_dataset(kind, data_files=file, split="train", cache_dir=cache)
json.dump({"features": {name: str(kind) for name, kind in loaded.features.items()}, "rows": list(loaded)}, sys.stdout)
