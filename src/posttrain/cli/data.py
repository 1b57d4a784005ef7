"""toolkit-data: make data sets."""

from posttrain.cli import data_files, doorway
from posttrain.cli.data_generate import generate
from posttrain.cli.data_run import run

main = doorway.command_app()
main.command()(run)
main.command()(data_files.dedup)
main.command()(data_files.decontaminate)
main.command()(data_files.stats)
main.add_typer(generate, name="generate", help="Write rows of puzzles for toolkit-rl-dataserver, made by a program.")


@main.callback(help="Make data sets, and clean and measure files of rows.")
def data(version: doorway.Version = False) -> None:
    """Only what all of them share."""
