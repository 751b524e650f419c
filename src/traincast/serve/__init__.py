"""The planner in the browser, on the person's own machine; its endpoints serve programs as well.

One process answers requests (`traincast.serve.app`), a few others work (`traincast.serve.worker`): each takes one call
at a time, keeps what it prepared for the next one, and is killed where a call is cancelled. What can be asked is a
function of a record (`traincast.serve.endpoints`), which knows nothing of the web.
"""
