"""``traincast schema``."""

import click

from traincast import report
from traincast.cli.terminal import print_document, print_json


@click.command(name="schema")
@click.argument("document", required=False)
def command(document: str | None) -> None:
    """Print the JSON Schema of a document of --json.

    DOCUMENT is as in its "schema" key, traincast.result/1, or result for short; without it the documents are listed.
    """
    if document is not None:
        print_json(report.schema(document))
        return
    width = max(map(len, report.DOCUMENTS))
    for each, (what, _) in report.DOCUMENTS.items():
        print_document(f"{each:{width}}  {what}")
