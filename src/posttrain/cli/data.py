"""toolkit-data: make data sets."""

from posttrain.cli import doorway
from posttrain.cli.data_generate import generate

main = doorway.command_app()
main.add_typer(generate, name="generate", help="Write rows of puzzles for toolkit-rl-dataserver, made by a program.")


@main.callback(help="Make data sets.")
def data(version: doorway.Version = False) -> None:
    """Only what all of them share."""
