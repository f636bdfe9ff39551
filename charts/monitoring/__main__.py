"""Write the dashboards and the alerts into a folder: `python -m charts.monitoring FOLDER`."""

import sys
from pathlib import Path

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from charts.monitoring.alerts import groups
from charts.monitoring.dashboards import DASHBOARDS


def main(folder: Path) -> None:
    boards = folder / "dashboards"
    boards.mkdir(parents=True, exist_ok=True)
    for name, board in DASHBOARDS.items():
        encoded = JSONEncoder(sort_keys=True, indent=1).encode(board)
        (boards / f"{name}.json").write_text(f"{encoded}\n")
    (folder / "rules.yaml").write_text(yaml.safe_dump(groups(), sort_keys=False, width=120))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
