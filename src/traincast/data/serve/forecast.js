// placeholder of the skeleton
import { empty, put } from "./ui.js";
export default { name: "forecast", title: "forecast", mount(root, app) { return { show() { put(root, empty("forecast", "")); }, hide() {} }; } };
