// The canvas: lanes of ranks by streams, with zoom, selection, arrows, search and the critical path.

const GUTTER = 190;
const AXIS = 22;
const TALL = 18;
const LOW = 11;
const GAP = 7;
const SHORTEST_VIEW_S = 1e-8;

class Timeline {
  /** Draw runs on a canvas within a spacer within lanes that scroll, with a tip: the elements by these names. */
  constructor(runs, colours, { canvas, lanes, spacer, tip }) {
    Object.assign(this, { runs, colours, canvas, spacer, tip, box: lanes });
    this.context = this.canvas.getContext("2d");
    this.stepS = Math.max(...runs.map((run) => run.stepS));
    this.from = 0;
    this.to = this.stepS;
    this.selected = null;
    this.matches = null;
    this.focus = null;
    this.marked = new Set();
    this.showPath = false;
    this.onSelect = () => {};
    this.layOut();
    this.listen();
    this.recolour();
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.box);
  }

  /** Let go of the page. */
  close() {
    this.resized.disconnect();
    cancelAnimationFrame(this.asked);
  }

  /** Place the lanes: those of a rank together, and the same rank of two runs one after the other. */
  layOut() {
    const ranks = [...new Set(this.runs.flatMap((run) => run.header.ranks.map((each) => each.rank)))].sort((a, b) => a - b);
    this.lanes = [];
    let top = 0;
    for (const rank of ranks) {
      for (const run of this.runs) {
        const mine = run.lanes.filter((lane) => lane.owner.rank === rank);
        mine.forEach((lane, at) => {
          lane.first = at === 0;
          lane.height = lane.name.startsWith("compute") || at === 0 ? TALL : LOW;
          lane.top = top;
          top += lane.height + 1;
          lane.at = this.lanes.length;
          this.lanes.push(lane);
        });
        if (mine.length) top += GAP;
      }
    }
    this.height = top + AXIS;
    this.spacer.style.height = `${this.height}px`;
  }

  recolour() {
    this.colours.refresh();
    this.rows = new Map(this.runs.map((run) => [run, this.colours.ofRows(run)]));
    this.draw();
  }

  get width() { return this.box.clientWidth - GUTTER; }
  x(seconds) { return GUTTER + ((seconds - this.from) / (this.to - this.from)) * this.width; }
  secondsAt(x) { return this.from + ((x - GUTTER) / this.width) * (this.to - this.from); }

  draw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => { this.asked = 0; this.paint(); });
  }

  paint() {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (this.canvas.width !== width * ratio || this.canvas.height !== height * ratio) {
      this.canvas.width = width * ratio;
      this.canvas.height = height * ratio;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const ink = this.context;
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    ink.fillStyle = this.colours.named.page;
    ink.fillRect(0, 0, width, height);
    ink.save();
    ink.beginPath();
    ink.rect(GUTTER, AXIS, width - GUTTER, height - AXIS);
    ink.clip();
    for (const lane of this.visible()) this.paintLane(ink, lane);
    this.paintPath(ink);
    this.paintSelected(ink);
    ink.restore();
    this.paintLabels(ink);
    this.paintAxis(ink, width);
    this.painted = performance.now();
  }

  visible() {
    const [top, bottom] = [this.box.scrollTop - AXIS, this.box.scrollTop + this.box.clientHeight];
    return this.lanes.filter((lane) => lane.top + lane.height > top && lane.top < bottom);
  }

  y(lane) { return AXIS + lane.top - this.box.scrollTop; }

  /** Return the first operation of a lane, by its place in the lane, that ends after a time. */
  firstAfter(lane, seconds) {
    let [low, high] = [0, lane.ops.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.run.endS(lane.ops[middle]) < seconds) low = middle + 1; else high = middle;
    }
    return low;
  }

  paintLane(ink, lane) {
    const { run, ops } = lane;
    const [y, rows, scale] = [this.y(lane), this.rows.get(run), this.width / (this.to - this.from)];
    const tick = run.tickS * scale;
    const shift = GUTTER - this.from * scale;
    const last = this.to / run.tickS;
    ink.fillStyle = this.colours.named.panel;
    ink.fillRect(GUTTER, y, this.width, lane.height);
    // What lies within half a pixel of what was drawn last would not be seen.
    let drawnTo = -1e9;
    for (let n = this.firstAfter(lane, this.from); n < ops.length; n++) {
      const op = ops[n];
      if (run.ready[op] > last) break;
      const begin = shift + run.ready[op] * tick;
      const start = begin + run.wait[op] * tick;
      const end = start + run.run[op] * tick;
      if (end < drawnTo + 0.5 || end === begin) continue;
      const faint = this.isFaint(run, op);
      ink.globalAlpha = faint ? 0.18 : 1;
      if (run.wait[op] && start - begin >= 0.5) {
        ink.fillStyle = this.colours.named.wait;
        ink.fillRect(begin, y + lane.height * 0.3, start - begin, lane.height * 0.4);
      }
      if (run.run[op]) {
        ink.fillStyle = rows ? rows[run.row[op]] : this.colours.op(run, op);
        const wide = Math.max(end - start, 0.7);
        ink.fillRect(start, y, wide > 3 ? wide - 0.5 : wide, lane.height);
        if (wide > 34 && lane.height === TALL && !faint) this.write(ink, run.text("name_T", op), start, y, wide);
      }
      drawnTo = Math.max(drawnTo, end);
    }
    ink.globalAlpha = 1;
  }

  isFaint(run, op) {
    if (this.matches) return !this.matches.flags.get(run)[op];
    if (this.focus) return !this.focus.rows.has(run.row[op]) || !this.focus.ranks.has(run.laneFor(op).owner.rank);
    return this.showPath && !run.onPath[op];
  }

  write(ink, text, x, y, wide) {
    const from = Math.max(x, GUTTER);
    const room = Math.floor((x + wide - from - 6) / 6);
    if (room < 3) return;
    ink.font = "11px system-ui, sans-serif";
    ink.fillStyle = this.colours.named.page;
    ink.fillText(text.length > room ? `${text.slice(0, room - 1)}\u2026` : text, from + 3, y + 13);
  }

  paintPath(ink) {
    if (!this.showPath) return;
    ink.strokeStyle = this.colours.named.path;
    ink.lineWidth = 1.5;
    for (const run of this.runs) {
      ink.beginPath();
      let from = null;
      for (const op of run.path) {
        const lane = run.laneFor(op);
        const y = this.y(lane) + lane.height / 2;
        const [start, end] = [this.x(run.startS(op)), this.x(run.endS(op))];
        if (from && end > GUTTER && from.x < GUTTER + this.width && (from.y !== y || start - from.x > 1)) {
          ink.moveTo(from.x, from.y);
          ink.lineTo(start, y);
        }
        from = { x: end, y };
      }
      ink.stroke();
    }
  }

  paintSelected(ink) {
    if (!this.selected) return;
    const { run, op } = this.selected;
    const cause = run.causeOf(op);
    if (cause >= 0) this.arrow(ink, run, cause, op);
    for (const effect of run.effects(op).slice(0, 40)) this.arrow(ink, run, op, effect);
    for (const partner of run.partners(op).slice(0, 64)) this.tie(ink, run, op, partner);
    const lane = run.laneFor(op);
    const [x, wide] = [this.x(run.readyS(op)), Math.max(3, this.x(run.endS(op)) - this.x(run.readyS(op)))];
    ink.strokeStyle = this.colours.named.text;
    ink.lineWidth = 2;
    ink.strokeRect(x - 1, this.y(lane) - 1, wide + 2, lane.height + 2);
  }

  arrow(ink, run, from, to) {
    const [a, b] = [run.laneFor(from), run.laneFor(to)];
    const [x, y] = [this.x(run.endS(from)), this.y(a) + a.height / 2];
    const [u, v] = [this.x(run.readyS(to)), this.y(b) + b.height / 2];
    ink.strokeStyle = ink.fillStyle = this.colours.named.accent;
    ink.lineWidth = 1.4;
    ink.beginPath();
    ink.moveTo(x, y);
    ink.bezierCurveTo(x + 24, y, u - 24, v, u, v);
    ink.stroke();
    ink.beginPath();
    ink.moveTo(u, v);
    ink.lineTo(u - 6, v - 3.5);
    ink.lineTo(u - 6, v + 3.5);
    ink.fill();
  }

  tie(ink, run, from, to) {
    const [a, b] = [run.laneFor(from), run.laneFor(to)];
    const x = this.x(run.startS(from));
    ink.strokeStyle = this.colours.named.accent;
    ink.setLineDash([3, 3]);
    ink.lineWidth = 1;
    ink.beginPath();
    ink.moveTo(x, this.y(a) + a.height / 2);
    ink.lineTo(this.x(run.startS(to)), this.y(b) + b.height / 2);
    ink.stroke();
    ink.setLineDash([]);
  }

  paintLabels(ink) {
    ink.fillStyle = this.colours.named.page;
    ink.fillRect(0, 0, GUTTER, this.box.clientHeight);
    for (const lane of this.visible()) {
      const y = this.y(lane);
      if (this.marked.has(lane.owner.rank)) {
        ink.fillStyle = this.colours.named["warn-back"];
        ink.fillRect(0, y, GUTTER - 2, lane.height + 1);
        ink.fillStyle = this.colours.named.path;
        ink.fillRect(0, y, 3, lane.height + 1);
      }
      if (lane.first) {
        ink.font = "600 12px system-ui, sans-serif";
        ink.fillStyle = this.colours.named.text;
        const alike = lane.owner.represents > 1 ? ` \u00d7${lane.owner.represents}` : "";
        const which = this.runs.length > 1 ? ` ${lane.run.order ? "B" : "A"}` : "";
        ink.fillText(`rank ${lane.owner.rank}${which}${alike}`.slice(0, 24), 6, y + 13);
      }
      ink.font = "10px system-ui, sans-serif";
      ink.fillStyle = this.colours.named.soft;
      ink.textAlign = "right";
      ink.fillText((lane.first ? `stage ${lane.owner.stage}` : lane.name).slice(0, 22), GUTTER - 6, y + lane.height / 2 + 4);
      ink.textAlign = "left";
    }
  }

  paintAxis(ink, width) {
    ink.fillStyle = this.colours.named.panel;
    ink.fillRect(0, 0, width, AXIS);
    const rough = (this.to - this.from) / Math.max(2, this.width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    ink.font = "11px system-ui, sans-serif";
    for (let at = Math.ceil(this.from / every) * every; at <= this.to; at += every) {
      ink.fillStyle = this.colours.named.line;
      ink.fillRect(this.x(at), AXIS - 5, 1, 5);
      ink.fillStyle = this.colours.named.soft;
      ink.fillText(time(Math.abs(at) < every / 2 ? 0 : at), this.x(at) + 3, 15);
    }
    ink.fillStyle = this.colours.named.text;
    ink.fillText(`${time(this.to - this.from)} shown`, 6, 15);
  }

  /** Mark ranks, and bring the first of them into view. */
  mark(ranks) {
    this.marked = new Set(ranks);
    const mine = this.lanes.filter((lane) => this.marked.has(lane.owner.rank));
    const [first, last] = [mine[0], mine.at(-1)];
    const within = first && first.top >= this.box.scrollTop && last.top + last.height + AXIS <= this.box.scrollTop + this.box.clientHeight;
    if (first && !within) this.box.scrollTop = Math.min(first.top, Math.max(0, (first.top + last.top + AXIS - this.box.clientHeight) / 2));
    this.draw();
  }

  /** Show what a sentence is about: its operations, where they run, and when. */
  show(run, about) {
    this.focus = { about, rows: new Set(about.rows), ranks: new Set(about.ranks) };
    const edge = 0.03 * (about.to_s - about.from_s);
    this.view(about.from_s - edge, about.to_s + edge);
    if (about.culprit) this.mark(about.ranks);
    this.draw();
  }

  /** Show a span, kept within the step and no shorter than the clock can tell. */
  view(from, to) {
    const least = Math.max(SHORTEST_VIEW_S, this.stepS / 1e7);
    const length = Math.min(Math.max(to - from, least), this.stepS);
    this.from = Math.min(Math.max(from, 0), this.stepS - length);
    this.to = this.from + length;
    this.draw();
  }

  zoom(factor, x = GUTTER + this.width / 2) {
    const at = this.secondsAt(x);
    this.view(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(part) {
    const by = (this.to - this.from) * part;
    this.view(this.from + by, this.to + by);
  }

  fit() { this.view(0, this.stepS); }

  opAt(x, y) {
    if (x < GUTTER || y < AXIS) return null;
    const lane = this.lanes.find((each) => y >= this.y(each) && y <= this.y(each) + each.height);
    if (!lane) return null;
    const slack = (2 * (this.to - this.from)) / this.width;
    const seconds = this.secondsAt(x);
    for (let n = this.firstAfter(lane, seconds - slack); n < lane.ops.length; n++) {
      const op = lane.ops[n];
      if (lane.run.readyS(op) > seconds + slack) break;
      if (lane.run.run[op] || lane.run.wait[op]) return { run: lane.run, op };
    }
    return null;
  }

  select(run, op, show = true) {
    this.selected = op === null ? null : { run, op };
    if (op !== null && show) this.reveal(run, op);
    this.onSelect(this.selected);
    this.draw();
  }

  /** Bring an operation into view: its time, where it is outside or too short to see, and its lane. */
  reveal(run, op) {
    const [from, to] = [run.readyS(op), run.endS(op)];
    const long = Math.max(to - from, this.stepS / 1e6);
    if (from < this.from || to > this.to || (to - from) / (this.to - this.from) < 0.004) {
      this.view(from - 8 * long, to + 8 * long);
    }
    const lane = run.laneFor(op);
    if (lane.top < this.box.scrollTop || lane.top + lane.height + AXIS > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = lane.top - this.box.clientHeight / 2;
    }
  }

  /** Go to the next operation of the lane, or to that of the lane above or below at the same time. */
  step(along, across) {
    if (!this.selected) {
      const lane = this.visible()[0];
      if (lane) this.select(lane.run, lane.ops[Math.min(this.firstAfter(lane, this.from), lane.ops.length - 1)]);
      return;
    }
    const { run, op } = this.selected;
    let lane = run.laneFor(op);
    let at = lane.ops.indexOf(op);
    if (across) {
      lane = this.lanes[lane.at + across];
      if (!lane) return;
      at = Math.min(this.firstAfter(lane, run.startS(op)), lane.ops.length - 1) - along;
    }
    do at += along || 1; while (lane.ops[at] !== undefined && !lane.run.run[lane.ops[at]] && !lane.run.wait[lane.ops[at]]);
    if (across && lane.ops[at] === undefined) at = lane.ops.length - 1;
    if (lane.ops[at] !== undefined) this.select(lane.run, lane.ops[at]);
  }

  /** Find the operations whose name holds a text; the others fade. */
  search(text) {
    const wanted = text.trim().toLowerCase();
    this.matches = null;
    if (wanted) {
      const [flags, found] = [new Map(), []];
      for (const run of this.runs) {
        const hit = run.header.strings.map((each) => each.toLowerCase().includes(wanted));
        const mark = new Uint8Array(run.count);
        for (const lane of run.lanes) {
          for (const op of lane.ops) {
            if (!hit[run.name_T[run.row[op]]] || !(run.run[op] || run.wait[op])) continue;
            mark[op] = 1;
            found.push({ run, op });
          }
        }
        flags.set(run, mark);
      }
      found.sort((a, b) => a.run.startS(a.op) - b.run.startS(b.op));
      this.matches = { flags, found, at: -1 };
    }
    this.draw();
    return this.matches;
  }

  nextMatch(by) {
    if (!this.matches?.found.length) return;
    const { found } = this.matches;
    this.matches.at = (this.matches.at + by + found.length) % found.length;
    const { run, op } = found[this.matches.at];
    this.select(run, op);
  }

  listen() {
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.box.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("wheel", (event) => {
      if (!(event.ctrlKey || event.metaKey || event.shiftKey || event.deltaX)) return;
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) this.zoom(event.deltaY > 0 ? 1.25 : 0.8, place(event)[0]);
      else this.pan((event.deltaX || event.deltaY) / 1000);
    }, { passive: false });
    let drag = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, from: this.from, to: this.to, moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!drag) { this.hover(event, ...place(event)); return; }
      const by = event.clientX - drag.x;
      drag.moved ||= Math.abs(by) > 3;
      const seconds = (by / this.width) * (drag.to - drag.from);
      if (drag.moved) this.view(drag.from - seconds, drag.to - seconds);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const clicked = drag && !drag.moved;
      drag = null;
      if (!clicked) return;
      this.clickedS = this.secondsAt(place(event)[0]);
      const found = this.opAt(...place(event));
      this.select(found?.run ?? null, found?.op ?? null, false);
    });
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    // The first click may have opened the side, so that another time is below the pointer by now.
    this.canvas.addEventListener("dblclick", () => this.view(this.clickedS - 0.2 * (this.to - this.from), this.clickedS + 0.2 * (this.to - this.from)));
  }

  hover(event, x, y) {
    const found = this.opAt(x, y);
    this.tip.hidden = !found;
    if (!found) return;
    const { run, op } = found;
    const waits = run.wait[op] ? `, after waiting ${time(run.waitS(op))}` : "";
    this.tip.textContent = `${run.text("name_T", op)}: ${time(run.runS(op))}${waits}; starts at ${time(run.startS(op))}`;
    this.placeTip(event.clientX, run.laneFor(op));
  }

  /** Put the tip below the lane that it explains, or above it, within the timeline: it covers neither bar nor side. */
  placeTip(x, lane) {
    const box = this.box.getBoundingClientRect();
    this.tip.style.maxWidth = `${Math.min(380, box.width - 8)}px`;
    const { width, height } = this.tip.getBoundingClientRect();
    const [above, below] = [box.top + this.y(lane) - height - 6, box.top + this.y(lane) + lane.height + 6];
    this.tip.style.left = `${Math.max(box.left + 4, Math.min(x + 14, box.right - width - 4))}px`;
    this.tip.style.top = `${below + height <= Math.min(box.bottom, window.innerHeight) ? below : above}px`;
  }
}
