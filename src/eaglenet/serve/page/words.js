// Lines that were said or are to be read, with what was asked for marked.

import { clock, element } from "./view.js";

const KINDS = { subtitle: "subtitle", speech: "said", text: "written", description: "shows" };

// Places are counted in characters as people know them, which JavaScript's strings do not.
const marked = (line) => {
  const signs = [...line.text];
  const parts = [];
  let place = 0;
  for (const [from, to] of line.highlights) {
    if (from < place) continue;
    parts.push(signs.slice(place, from).join(""), element("mark", "", signs.slice(from, to).join("")));
    place = to;
  }
  parts.push(signs.slice(place).join(""));
  return parts;
};

export const lineOf = (line) => {
  const made = element("span", "line");
  const kind = KINDS[line.kind] ?? line.kind;
  const label = line.by_meaning ? `${kind}, similar in meaning` : kind;
  made.append(element("span", "kind", label), " ", ...marked(line));
  return made;
};

export const list = (lines, play) => lines.map((line) => {
  const item = element("li");
  const button = element("button", "said");
  button.type = "button";
  button.append(element("span", "time", clock(line.start)), " ", lineOf(line));
  button.addEventListener("click", () => play(line.start));
  item.append(button);
  return item;
});
