// The timeline as a trace: to save, and to hand to Perfetto.

/** The timeline as Trace Event Format, for Perfetto and chrome://tracing. */
function traceEvents(runs) {
  const events = [];
  for (const run of runs) {
    for (const lane of run.lanes) {
      const [pid, tid] = [lane.owner.rank + run.order * 1e6, lane.at + 1];
      events.push({ ph: "M", name: "process_name", pid, args: { name: `rank ${lane.owner.rank}${runs.length > 1 ? ` of ${run.name}` : ""}` } });
      events.push({ ph: "M", name: "thread_name", pid, tid, args: { name: lane.name } });
      for (const op of lane.ops) {
        const [name, cat] = [run.text("name_T", op), run.kindOf(op)];
        if (run.wait[op]) events.push({ ph: "X", pid, tid, name: `wait: ${name}`, cat: "wait", ts: run.readyS(op) * 1e6, dur: run.waitS(op) * 1e6 });
        if (run.run[op]) events.push({ ph: "X", pid, tid, name, cat, ts: run.startS(op) * 1e6, dur: run.runS(op) * 1e6, args: { microbatch: run.microbatch[op] } });
      }
    }
  }
  return JSON.stringify({ traceEvents: events });
}

function saveTrace(runs) {
  const link = element("a", { href: URL.createObjectURL(new Blob([traceEvents(runs)], { type: "application/json" })), download: "trace.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Hand the trace to Perfetto's page as it asks for it: it answers PONG to PING once it listens. */
function openInPerfetto(runs) {
  const origin = "https://ui.perfetto.dev";
  const tab = window.open(origin);
  if (!tab) return;
  const ping = setInterval(() => tab.postMessage("PING", origin), 200);
  const answer = (event) => {
    if (event.origin !== origin || event.data !== "PONG") return;
    clearInterval(ping);
    window.removeEventListener("message", answer);
    const buffer = new TextEncoder().encode(traceEvents(runs)).buffer;
    tab.postMessage({ perfetto: { buffer, title: document.title, fileName: "trace.json" } }, origin, [buffer]);
  };
  window.addEventListener("message", answer);
}
