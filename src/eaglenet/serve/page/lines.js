// Transcript lines with highlighted matches, and the steps of temporal queries.

import { clock, element } from "./view.js";

// Highlights count Unicode code points, while JavaScript strings count UTF-16 units.
const highlight = (line) => {
  const characters = [...line.text];
  const nodes = [];
  let position = 0;
  for (const [from, to] of line.highlights) {
    if (from < position) continue;
    nodes.push(characters.slice(position, from).join(""), element("mark", "", characters.slice(from, to).join("")));
    position = to;
  }
  nodes.push(characters.slice(position).join(""));
  return nodes;
};

export const lineOf = (line) => {
  const node = element("span", "line");
  const kind = line.kind === "text" ? "on-screen text" : line.kind;
  const label = line.by_meaning ? `${kind}, similar in meaning` : kind;
  node.append(element("span", "kind", label), " ", ...highlight(line));
  return node;
};

const timedItem = (start, content, play) => {
  const item = element("li");
  const button = element("button", "said");
  button.type = "button";
  button.append(element("span", "time", clock(start)), " ", content);
  button.addEventListener("click", () => play(start));
  item.append(button);
  return item;
};

export const lineItems = (lines, play) => lines.map((line) => timedItem(line.start, lineOf(line), play));

// The steps of a query like "a" then "b", each with its start time.
export const stepItems = (steps, play) => steps.map((step, index) => {
  const node = element("span", "line");
  node.append(element("span", "kind", `step ${index + 1}`), ` ${step.query}`);
  return timedItem(step.start, node, play);
});
