"""The planner in the browser, on the person's own machine; its endpoints serve programs as well.

One process answers requests (`traincast.serve.app`), a few others work (`traincast.serve.answers.worker`): each takes
one call at a time, keeps what it prepared for the next one, and is killed where a call is cancelled.

The room is in three. `records` say what is asked and answered, and know nothing else. `answers` are functions of a
record that return one; they and all that they need are loaded in workers alone. What is here serves: it knows records
and the list of endpoints (`traincast.serve.endpoints`), and hands each call on by its name, so that it is small and
starts at once.
"""

from typing import TYPE_CHECKING

from traincast.lazy import names_on_demand

if TYPE_CHECKING:
    from traincast.serve.programs import serve_programs as serve_programs
    from traincast.serve.run import serve_pages as serve_pages

__getattr__, __dir__ = names_on_demand(
    __name__, {"traincast.serve.programs": "serve_programs", "traincast.serve.run": "serve_pages"}
)
