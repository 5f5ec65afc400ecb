// The API page: every path of /api/v1/openapi.json with its fields and an example command.

import { call } from "./api.js";
import { copy, el, fault, scrollTable } from "./dom.js";
import { route, show } from "./router.js";
import { API_PAGE, COMMON } from "./texts.js";

const METHODS = ["get", "post", "put", "delete"];
const SAMPLES = { model: "qwen3-8b", id: "qwen3-8b", job_id: "ID" };
const OPEN_FIELDS = 8; // longer tables are folded
const LOOPBACK = new Set(["127.0.0.1", "localhost", "[::1]"]); // elsewhere a token is needed
const RAW = "/api/v1/openapi.json";

route("/api/docs", { title: API_PAGE.title, render });

async function render(root, _params, { signal }) {
  const room = el("div", { class: "api" }, el("p", { class: "muted", text: API_PAGE.loading }));
  root.append(
    el("h1", { text: API_PAGE.title }),
    el("p", { class: "lead muted" }, API_PAGE.lead, el("a", { href: RAW, text: "openapi.json" })),
    room,
  );
  try {
    const spec = await call("openapi.json", {}, { signal });
    const all = operations(spec);
    room.replaceChildren(contents(all), ...all.map((one) => operation(one, spec)));
    document.getElementById(location.hash.slice(1))?.scrollIntoView(); // it did not exist when the browser tried
  } catch (error) {
    if (error.name === "AbortError") return;
    room.replaceChildren(el("div", { class: "error", role: "alert" }, ...fault(error.message, () => show())));
  }
}

/** Every method of every path; GET and POST of one path take the same fields and are shown together. */
function operations(spec) {
  return Object.entries(spec.paths).flatMap(([path, item]) => {
    const shared = item.parameters ?? [];
    const found = METHODS.filter((method) => item[method]);
    const told = (method) => ({ path, method, shared, ...item[method] });
    if (!item.get || !item.post) return found.map((method) => ({ path, methods: [told(method)] }));
    return { path, methods: [told("get"), told("post")] };
  });
}

const verbs = ({ methods }) => methods.map(({ method }) => method.toUpperCase());
const nameOf = (one) => `${verbs(one).join(", ")} ${one.path}`;
const idOf = (one) => nameOf(one).toLowerCase().replace(/[^a-z0-9]+/g, "-");

function contents(all) {
  const links = all.map((one) => el("li", {}, el("a", { href: `#${idOf(one)}`, text: nameOf(one) })));
  return el("nav", { class: "panel api-contents", "aria-label": API_PAGE.paths }, el("ul", {}, links));
}

/** Resolves a $ref. */
function resolved(spec, part) {
  const path = part?.$ref?.split("/").slice(1);
  return path ? path.reduce((at, name) => at?.[name], spec) : part;
}

/** The fields of an operation, from its parameters and its body. */
function fieldsOf(one, spec) {
  const parameters = [...one.shared, ...(one.parameters ?? [])].map((part) => resolved(spec, part));
  const inQuery = parameters.map(({ name, in: where, required: isNeeded, schema, description }) => ({
    name,
    where,
    isNeeded,
    schema,
    told: description ?? schema?.description,
  }));
  const body = resolved(spec, one.requestBody?.content?.["application/json"]?.schema);
  const inBody = Object.entries(body?.properties ?? {}).map(([name, schema]) => ({
    name,
    where: "body",
    isNeeded: body.required?.includes(name),
    schema,
    told: schema.description ?? resolved(spec, schema)?.description,
  }));
  return [...inQuery, ...inBody];
}

/** The type of a field: "text", "number | text", "list of text". */
function typeOf(schema, spec) {
  const plain = resolved(spec, schema) ?? {};
  if (plain.enum) return plain.enum.map(String).join(" | ");
  if (plain.const !== undefined) return String(plain.const);
  const several = plain.anyOf ?? plain.oneOf;
  if (several) return [...new Set(several.map((one) => typeOf(one, spec)))].filter((one) => one !== "null").join(" | ");
  if (plain.type === "array") return API_PAGE.list(typeOf(plain.items, spec));
  return API_PAGE.types[plain.type] ?? plain.type ?? API_PAGE.anything;
}

function fieldTable(fields, spec, title) {
  const rows = fields.map((field) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("code", { text: field.name }), field.isNeeded && needed()),
      el("td", { class: "small", text: typeOf(field.schema, spec) }),
      el("td", { text: field.told ?? "" }),
    )
  );
  return scrollTable(API_PAGE.fieldsOf(title), "fields", API_PAGE.columns, el("tbody", {}, rows));
}

const needed = () => el("small", { class: "muted", text: API_PAGE.required });

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** An example value of a field: the specification's, else a known one. */
function sample({ name, schema }) {
  return schema?.examples?.[0] ?? schema?.example ?? SAMPLES[name] ?? API_PAGE.sample;
}

/** A curl command; it works unchanged if every field has an example. */
function curl(one, fields) {
  const given = fields.filter((field) => field.isNeeded || field.name === "model" || field.where === "path");
  const at = (where) => given.filter((field) => field.where === where).map((field) => [field.name, sample(field)]);
  const path = at("path").reduce(
    (text, [name, value]) => text.replace(`{${name}}`, encodeURIComponent(value)),
    one.path,
  );
  const search = at("query").length ? `?${new URLSearchParams(at("query"))}` : "";
  const words = ["curl", quoted(location.origin + path + search)];
  if (!LOOPBACK.has(location.hostname)) words.push("-H", quoted("Authorization: Bearer TOKEN"));
  if (path.endsWith("/events")) words.splice(1, 0, "-N"); // do not buffer events
  if (one.method === "post") words.push("--json", quoted(JSON.stringify(Object.fromEntries(at("body")))));
  else if (one.method !== "get") words.splice(1, 0, `-X ${one.method.toUpperCase()}`);
  return words.join(" ");
}

function commandLine(command) {
  const button = el("button", { type: "button", text: COMMON.copy, onclick: () => copy(command, button) });
  return el("div", { class: "command" }, el("pre", { tabIndex: 0, text: command }), button);
}

function operation(one, spec) {
  const [first] = one.methods;
  const fields = fieldsOf(first, spec);
  const badges = verbs(one).map((verb) => el("span", { class: `method method-${verb.toLowerCase()}`, text: verb }));
  return el(
    "section",
    { class: "panel operation", id: idOf(one), "aria-label": nameOf(one) },
    el("h2", {}, badges, el("code", { text: one.path })),
    el("p", { text: first.description ?? first.summary ?? "" }),
    one.methods.map((told) => commandLine(curl(told, fieldsOf(told, spec)))),
    fields.length > 0 && el(
      "details",
      { open: fields.length < OPEN_FIELDS },
      el("summary", { text: API_PAGE.fields(fields.length) }),
      fieldTable(fields, spec, nameOf(one)),
    ),
  );
}
