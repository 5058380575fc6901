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

const timed = (start, content, play) => {
  const item = element("li");
  const button = element("button", "said");
  button.type = "button";
  button.append(element("span", "time", clock(start)), " ", content);
  button.addEventListener("click", () => play(start));
  item.append(button);
  return item;
};

export const list = (lines, play) => lines.map((line) => timed(line.start, lineOf(line), play));

// The steps of a query like "a" then "b", each with the time at which it begins.
export const steps = (all, play) => all.map((step, place) => {
  const made = element("span", "line");
  made.append(element("span", "kind", `step ${place + 1}`), ` ${step.query}`);
  return timed(step.start, made, play);
});
