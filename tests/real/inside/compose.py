"""Holds compose files, named as arguments, against the schema of compose files; one complaint per line."""

import json
import sys
from importlib.metadata import files
from pathlib import Path

import jsonschema
import yaml

SCHEMA = "compose/config/compose_spec.json"


def main() -> int:
    (found,) = [file for file in files("docker-compose") or () if file.as_posix() == SCHEMA]
    schema = json.loads(Path(found.locate()).read_text())
    validator = jsonschema.Draft7Validator(schema)
    for name in sys.argv[1:]:
        for error in validator.iter_errors(yaml.safe_load(Path(name).read_text())):
            print(f"{name}: {error.json_path}: {error.message}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
