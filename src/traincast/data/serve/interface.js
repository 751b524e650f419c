// The interface for programs, described by its own OpenAPI document: what each endpoint takes and answers.

import { card, el, failure, put } from "./ui.js";

const LEFT = { style: { "text-align": "left" } };

const json = async (path) => {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`The server answered ${answer.status} to ${path}.`);
  return answer.json();
};

/** Return the record that a schema refers to; lists and choices of several as they are. */
function record(schema, parts) {
  const name = schema?.$ref?.split("/").at(-1);
  return name ? { name, ...parts[name] } : schema ?? {};
}

/** Say a type in a word: `string`, `array of ShownPart`. */
function typeOf(schema, parts) {
  if (!schema) return "";
  if (schema.$ref) return record(schema, parts).title ?? schema.$ref.split("/").at(-1);
  const several = schema.oneOf ?? schema.anyOf;
  if (several) return several.map((each) => typeOf(each, parts)).join(" or ");
  if (schema.type === "array") return `array of ${typeOf(schema.items, parts) || "anything"}`;
  return [schema.type].flat().join(" or ");
}

/** Return a table of the fields of a record. */
function fields(schema, parts) {
  const { properties = {}, required = [] } = record(schema, parts);
  const rows = Object.entries(properties).map(([name, each]) => el("tr", {},
    el("th", { scope: "row" }, el("code", {}, name)), el("td", LEFT, typeOf(each, parts)), el("td", LEFT, required.includes(name) ? "required" : "")));
  if (!rows.length) return el("p", { class: "hint" }, typeOf(schema, parts) || "nothing");
  return el("table", {}, el("tbody", {}, rows));
}

function endpoint(path, method, told, parts) {
  const takes = told.requestBody?.content?.["application/json"]?.schema;
  const answers = Object.entries(told.responses ?? {}).filter(([status]) => status < 300).map(([, each]) => Object.values(each.content ?? {})[0]?.schema)[0];
  return card(`${method.toUpperCase()} ${path}`, { wide: true }, el("p", {}, told.summary ?? ""),
    takes ? [el("h3", {}, "Takes"), fields(takes, parts)] : null, answers ? [el("h3", {}, "Answers"), fields(answers, parts)] : null);
}

function example() {
  const said = JSON.stringify({ job: { model: "llama3-70b", cluster: "h100", gpus: 512, tp: 8, pp: 4, global_batch: 512, seq_length: "8k" } });
  return card("How to ask", { wide: true },
    el("p", {}, "Requests are JSON. With a token, send it as Authorization: Bearer. What takes long answers with the id of a task, whose events are server-sent."),
    el("pre", { style: { "white-space": "pre-wrap", "overflow-wrap": "anywhere" } }, `curl -H 'Content-Type: application/json' -d '${said}' ${location.origin}/api/forecast`));
}

async function show() {
  const root = document.getElementById("answer");
  try {
    const [told, documents] = await Promise.all([json("/schema/openapi.json"), json("/documents")]);
    const parts = told.components?.schemas ?? {};
    const endpoints = Object.entries(told.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, each]) => endpoint(path, method, each, parts)));
    const schemas = card("Documents of --json", { wide: true }, el("p", {}, "Results inside answers are these documents; each has a JSON Schema."),
      el("ul", {}, documents.map((name) => el("li", {}, el("a", { href: `/documents/${name}` }, `traincast.${name}/1`)))));
    put(root, example(), endpoints, schemas);
  } catch (error) {
    put(root, failure(error));
  }
}

show();
