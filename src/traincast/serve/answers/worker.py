"""A worker: takes calls on its standard input, one after the other, and answers on its standard output.

It is started by the server (`traincast.serve.workers`) as a module, and ends with it.
"""

import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from select import select
from typing import BinaryIO

import msgspec

import traincast
from traincast.errors import TraincastError
from traincast.serve import answers
from traincast.serve.answers.bench import Workbench
from traincast.serve.endpoints import ENDPOINTS
from traincast.serve.failures import Problem, problem_of
from traincast.serve.records.forecasts import JobRecord
from traincast.serve.records.forms import Nothing
from traincast.serve.wire import Message, WorkerCall, framed, read_call

_NEW_OBJECTS = 200_000
"""Objects made and not yet gone before cycles among them are looked for."""
_IDLE_S = 0.3
"""Time without a call after which a worker loads what the next one needs, and gives back memory."""


class Worker:
    """Takes calls and answers them, one at a time."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._bench = Workbench(lambda event, record: self._send(Message(event, msgspec.json.encode(record))))
        self._loads = iter((self._load_forecasts, self._load_plans))

    def serve(self, calls: BinaryIO) -> None:
        """Answer calls until there are no more."""
        self._send(Message("ready"))
        while True:
            while _idle(calls) and self._tidy():
                pass
            call = read_call(calls)
            if call is None:
                return
            # In front of the first call, not of the start: what is compiled then may look anywhere.
            self._bench.close()
            self._bench.folder = Path(call.folder)
            self._send(self._answer(call))
            self._bench.let_go()

    def _tidy(self) -> bool:
        """Load what a kind of call needs while nobody asks, one at a time; when all is loaded give back memory.

        Say whether something was loaded.
        """
        load = next(self._loads, None)
        if load is None:
            self._bench.give_back()
            return False
        load()
        self._bench.settle()
        return True

    def _load_forecasts(self) -> None:
        self._bench.warm = True
        first = answers.examples(Nothing(), self._bench).examples[0]
        answers.forecast(JobRecord(job=first.job), self._bench)

    def _load_plans(self) -> None:
        traincast.plan(model="llama3-8b", cluster="h100", gpus=16, global_batch=16, engine=self._bench.engine)

    def _answer(self, call: WorkerCall) -> Message:
        try:
            endpoint = ENDPOINTS[call.name]
            answer = getattr(answers, endpoint.name)(endpoint.decode(call.body), self._bench)
            return Message("done", msgspec.json.encode(answer))
        except (TraincastError, msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
            problem = problem_of(error, call.folder)
        except MemoryError:
            problem = Problem.simple("out_of_memory", "not enough memory on this machine; ask for less at a time")
        except Exception:
            # A fault of ours: whoever runs the server reads where it is, a page does not.
            traceback.print_exc()
            problem = Problem.simple("internal", "an error inside traincast; the server's own output says where")
        return Message("failed", msgspec.json.encode({"error": problem}), problem.status)

    def _send(self, message: Message) -> None:
        self._out.write(framed(message))
        self._out.flush()


def _idle(calls: BinaryIO) -> bool:
    """Say whether nobody asks for a while; where the system cannot wait for a pipe, nobody is waited for."""
    return sys.platform != "win32" and not select([calls], [], [], _IDLE_S)[0]


def main() -> None:
    """Serve on standard input and output until the server goes."""
    # Ctrl-C goes to all processes of a terminal; the server decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    # What else is printed must not come between frames.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        Worker(out).serve(sys.stdin.buffer)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    main()
