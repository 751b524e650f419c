// placeholder of the skeleton
import { el, put } from "./ui.js";
export class Form { constructor(root, app) { this.root = root; this.app = app; } show(state) { put(this.root, el("pre", {}, JSON.stringify(this.app.job, null, 1))); } }
