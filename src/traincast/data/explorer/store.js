// What the page was given: runs, each with its result and its operations in columns.

const none = -1;

/** Return the bytes of a packed text. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Put the bytes of a column back in the order of its numbers, and differences back into numbers. */
function column(bytes, at, kind, length, fromTheLast) {
  const width = kind === "f8" ? 8 : 4;
  const sorted = new Uint8Array(length * width);
  for (let place = 0; place < width; place++) {
    const first = at + place * length;
    for (let n = 0; n < length; n++) sorted[n * width + place] = bytes[first + n];
  }
  const numbers = kind === "f8" ? new Float64Array(sorted.buffer) : new Int32Array(sorted.buffer);
  if (fromTheLast) for (let n = 1; n < length; n++) numbers[n] += numbers[n - 1];
  return numbers;
}

class Run {
  constructor(header, order) {
    this.header = header;
    this.result = header.result;
    this.name = header.name;
    this.order = order;
    this.stepS = header.result.iteration_time_s;
    this.lanes = [];
  }

  async load(text) {
    const bytes = await unpacked(text);
    let at = 0;
    for (const [name, kind, length, fromTheLast] of this.header.columns) {
      this[name] = column(bytes, at, kind, length, fromTheLast);
      at += length * (kind === "f8" ? 8 : 4);
    }
    this.count = this.ready.length;
    this.tickS = this.header.tick_s;
    this.onPath = new Uint8Array(this.count);
    for (const op of this.path) this.onPath[op] = 1;
    this.layOutLanes();
  }

  /** Find the operations of every lane, in order, and the lane of every operation. */
  layOutLanes() {
    this.laneOf = new Int32Array(this.count);
    let first = 0;
    for (const owner of this.header.ranks) {
      const last = first + owner.operations;
      const found = new Map(owner.lanes.map(([key, name]) => [key, { run: this, owner, name, ops: [] }]));
      for (let op = first; op < last; op++) found.get(this.lane[op])?.ops.push(op);
      for (const lane of found.values()) {
        if (!lane.ops.some((op) => this.run[op] || this.wait[op])) continue;
        lane.ops = Int32Array.from(lane.ops);
        for (const op of lane.ops) this.laneOf[op] = this.lanes.length;
        this.lanes.push(lane);
      }
      first = last;
    }
  }

  isShown(rank) { return this.header.ranks.some((each) => each.rank === rank); }

  text(column, op) {
    const at = this[column][this.row[op]];
    return at === none ? null : this.header.strings[at];
  }

  startS(op) { return (this.ready[op] + this.wait[op]) * this.tickS; }
  endS(op) { return (this.ready[op] + this.wait[op] + this.run[op]) * this.tickS; }
  readyS(op) { return this.ready[op] * this.tickS; }
  waitS(op) { return this.wait[op] * this.tickS; }
  runS(op) { return this.run[op] * this.tickS; }
  causeOf(op) { return this.cause[op] ? op - this.cause[op] : none; }
  laneFor(op) { return this.lanes[this.laneOf[op]]; }

  /** What waited for an operation last. */
  effects(op) {
    if (!this.effectPtr) {
      this.effectPtr = new Int32Array(this.count + 1);
      for (let n = 0; n < this.count; n++) if (this.cause[n]) this.effectPtr[this.causeOf(n) + 1]++;
      for (let n = 0; n < this.count; n++) this.effectPtr[n + 1] += this.effectPtr[n];
      const at = this.effectPtr.slice();
      this.effectOps = new Int32Array(this.effectPtr[this.count]);
      for (let n = 0; n < this.count; n++) if (this.cause[n]) this.effectOps[at[this.causeOf(n)]++] = n;
    }
    return Array.from(this.effectOps.subarray(this.effectPtr[op], this.effectPtr[op + 1]));
  }

  /** Everything that runs together with an operation: both ends of a message, members of a collective. */
  partners(op) {
    if (this.rendezvous[op] < 0) return [];
    if (!this.members) {
      this.members = new Map();
      for (let n = 0; n < this.count; n++) {
        if (this.rendezvous[n] < 0) continue;
        if (!this.members.has(this.rendezvous[n])) this.members.set(this.rendezvous[n], []);
        this.members.get(this.rendezvous[n]).push(n);
      }
    }
    return this.members.get(this.rendezvous[op]).filter((other) => other !== op);
  }

  /** What an operation counts as: its phase where it computes, its group where it communicates. */
  kindOf(op) {
    this.kinds ??= new Map();
    if (!this.kinds.has(this.row[op])) this.kinds.set(this.row[op], this.kindAt(op));
    return this.kinds.get(this.row[op]);
  }

  kindAt(op) {
    const kind = this.text("kind_T", op);
    if (kind === "compute") return this.text("phase_T", op);
    if (kind === "gap" || kind === "copy" || kind === "wait") return kind;
    return this.text("kind_of_group_T", op) || kind;
  }

  /** Sums over the operations of one rank, or of all, by a text of each. */
  sums(textOf, rank = null) {
    const found = new Map();
    for (const lane of this.lanes) {
      if (rank !== null && lane.owner.rank !== rank) continue;
      for (const op of lane.ops) {
        const text = textOf(op);
        if (text === null) continue;
        const sum = found.get(text) || { text, count: 0, runS: 0, waitS: 0, longest: op };
        sum.count++;
        sum.runS += this.runS(op);
        sum.waitS += this.waitS(op);
        if (this.run[op] > this.run[sum.longest]) sum.longest = op;
        found.set(text, sum);
      }
    }
    return Array.from(found.values());
  }
}

async function loadRuns() {
  const runs = [];
  for (let at = 0; document.getElementById(`run-${at}`); at++) {
    runs.push(new Run(JSON.parse(document.getElementById(`run-${at}`).textContent), at));
  }
  return runs;
}
