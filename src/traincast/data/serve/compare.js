// placeholder of the skeleton
import { empty, put } from "./ui.js";
export default { name: "compare", title: "compare", mount(root, app) { return { show() { put(root, empty("compare", "")); }, hide() {} }; } };
