// Queries of several parts without typing operators: the field is the first part, rows are the others.
// They become one text in the grammar of docs/reference/queries.md.

import { element } from "./view.js";

const MAX_ROWS = 7; // With the field: the largest number of steps.
const LABELS = { "+": "And", "-": "Without", then: "Then" };
const WHOLE = /^\s*"([^"]*)"((?:\s+(?:\+|-|then)\s+"[^"]*")+)(?:\s+within\s+(\d+)s)?\s*$/i;
const PART = /(\+|-|then)\s+"([^"]*)"/gi;

const field = document.querySelector("#query");
const rows = document.querySelector("#query-parts");
const add = document.querySelector("#add-part");
const within = document.querySelector("#within-steps");

const quote = (text) => `"${text.replace(/["\u201c\u201d]/g, " ").trim()}"`;

const values = () => [...rows.children].map((row) => ({
  kind: row.querySelector("select").value,
  text: row.querySelector("input").value.trim(),
}));

const update = () => {
  within.closest("label").hidden = !values().some((part) => part.kind === "then");
  add.hidden = rows.children.length >= MAX_ROWS;
  rows.hidden = !rows.children.length;
  [...rows.children].forEach((row, index) => {
    const number = index + 2;
    row.querySelector("select").setAttribute("aria-label", `How part ${number} belongs to the query`);
    row.querySelector("input").setAttribute("aria-label", `Part ${number}`);
    row.querySelector("button").setAttribute("aria-label", `Remove part ${number}`);
  });
};

const addRow = (kind = "+", text = "") => {
  const row = element("li", "part");
  const choice = element("select");
  for (const [value, label] of Object.entries(LABELS)) {
    const option = element("option", "", label);
    option.value = value;
    choice.append(option);
  }
  choice.value = kind;
  choice.addEventListener("change", update);
  const input = element("input");
  input.maxLength = 300;
  input.value = text;
  const remove = element("button", "quiet", "\u00d7");
  remove.type = "button";
  remove.addEventListener("click", () => {
    row.remove();
    update();
    (rows.lastElementChild?.querySelector("input") ?? field).focus();
  });
  row.append(choice, input, remove);
  rows.append(row);
  update();
  return input;
};

// The whole query as text; the field alone if all other parts are empty.
export const query = () => {
  const first = field.value.trim();
  const parts = values().filter((part) => part.text);
  if (!first || !parts.length) return first;
  const others = parts.map((part) => ` ${part.kind} ${quote(part.text)}`).join("");
  const limit = within.value && parts.some((part) => part.kind === "then") ? ` within ${within.value}s` : "";
  return quote(first) + others + limit;
};

export const isComposed = () => query() !== field.value.trim();

// Show a query: in rows if they can express it, else as text in the field.
export const restore = (text) => {
  const match = WHOLE.exec(text);
  const limits = [...within.options].map((option) => option.value);
  rows.replaceChildren();
  within.value = "";
  field.value = text;
  if (match && limits.includes(match[3] ?? "")) {
    field.value = match[1];
    for (const [, kind, part] of match[2].matchAll(PART)) addRow(kind.toLowerCase(), part);
    within.value = match[3] ?? "";
  }
  update();
};

export const setUp = () => {
  add.addEventListener("click", () => addRow(values().at(-1)?.kind ?? "+").focus());
  update();
};
