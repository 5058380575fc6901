// Cards of results. Text from the store only becomes text nodes, never markup.

export const clock = (seconds) => {
  const tenths = Math.round(seconds * 10);
  const hours = Math.floor(tenths / 36000);
  const minutes = Math.floor(tenths / 600) % 60;
  const secondsText = ((tenths % 600) / 10).toFixed(1).padStart(4, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${secondsText}` : `${minutes}:${secondsText}`;
};

export const span = (moment) => `${clock(moment.start)} \u2013 ${clock(moment.end)}`;

// Images have no duration.
export const isImage = (hit) => hit.duration === 0;

// Names of files may hold characters that nobody sees, or that reverse what follows ("gpj.exe").
// Joiners after other scripts and emoji are part of the writing.
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
export const visible = (text) => text.replace(INVISIBLE, (character, index) => {
  const code = character.codePointAt(0);
  if ((code === 0x200c || code === 0x200d) && text.charCodeAt(index - 1) > 0x7f) return character;
  return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
});

export const element = (name, className, text) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

// Address of the same file, converted on the fly for any browser.
export const streamOf = (hit) => hit.video.replace(/video$/, "stream");

export const folderOf = (hit) => hit.path.slice(0, -hit.name.length).split("/").filter(Boolean).pop() ?? "";

export const thumbnailImage = (source, frame) => {
  const image = element("img", "picture");
  image.alt = "";
  image.loading = "lazy";
  image.decoding = "async";
  image.addEventListener("load", () => {
    showWhole(frame, image);
    if (devicePixelRatio > 1) sharpen(image);
  }, { once: true });
  image.src = source;
  return image;
};

// Address of the frame of a thumbnail in a larger size.
export const frameOf = (thumbnail, side) => thumbnail.replace(/thumbnail$/, `frame?side=${side}`);

// Stored thumbnails are small; on a dense screen larger ones replace them once they are decoded.
// Two at a time, because a browser has few connections and the service few decoders.
const MAX_SHARPENING = 2;
const sharpenQueue = [];
let numSharpening = 0;

const sharpenNext = () => {
  const image = sharpenQueue.shift();
  if (!image) return;
  const source = frameOf(image.src, 640);
  if (!image.isConnected || source === image.src) { // Another search has replaced it.
    sharpenNext();
    return;
  }
  numSharpening += 1;
  const large = new Image();
  large.addEventListener("load", () => { image.src = source; }, { once: true });
  for (const end of ["load", "error"]) {
    large.addEventListener(end, () => { numSharpening -= 1; sharpenNext(); }, { once: true });
  }
  large.src = source;
};

const sharpen = (image) => {
  sharpenQueue.push(image);
  if (numSharpening < MAX_SHARPENING) sharpenNext();
};

// The confidence as a label if it was measured, else the score. Scores of transcripts and sequences,
// and negative scores, are not shown.
export const isMeasured = (hit) => typeof hit.confidence === "number";
export const scoreOf = (hit) => (hit.steps?.length || hit.transcript?.length || hit.score < 0 ? "" : hit.score?.toFixed(3) ?? "");
const strength = (hit) => (isMeasured(hit) ? hit.match : scoreOf(hit));

// Local format of the day of the recording; empty if unknown.
export const day = (hit) => (typeof hit.recorded === "number"
  ? new Date(1000 * hit.recorded).toLocaleDateString(undefined, { dateStyle: "medium" }) : "");

const positionBar = (hit) => {
  const bar = element("span", "where");
  const mark = element("i");
  const percent = (seconds) => `${100 * Math.min(1, Math.max(0, seconds / (hit.duration || 1)))}%`;
  mark.style.setProperty("--from", percent(hit.moment.start));
  mark.style.setProperty("--size", percent(hit.moment.end - hit.moment.start));
  bar.append(mark);
  return bar;
};

// Label of a file with unreadable parts; the player shows which.
export const damageLabel = (hit) => {
  const mark = element("span", "damaged", "damaged");
  mark.title = hit.damage;
  return mark;
};

// The accessible name of a card is its visible text.
export const card = (hit, open, line = null) => {
  const item = element("li");
  const button = element("button", "card");
  button.type = "button";
  button.title = visible(hit.path);
  const frame = element("span", "frame");
  frame.append(
    thumbnailImage(hit.thumbnail, frame),
    element("span", "rank", hit.rank),
    element("span", "span", isImage(hit) ? "image" : span(hit.moment)),
  );
  const text = element("span", "text");
  const facts = element("span", "facts");
  // The day first, because the end of a long folder is cut off.
  const origin = [day(hit), visible(folderOf(hit))].filter(Boolean).join(" \u00b7 ");
  facts.append(element("span", "folder", hit.more.length ? `+${hit.more.length} more` : origin), element("span", isMeasured(hit) ? `score ${hit.match}` : "score", strength(hit)));
  if (hit.damage) facts.firstChild.after(damageLabel(hit));
  text.append(element("span", "name", visible(hit.name)));
  if (line) text.append(line);
  text.append(facts);
  button.append(frame, ...(isImage(hit) ? [] : [positionBar(hit)]), text);
  button.addEventListener("click", () => open(hit));
  if (!isImage(hit)) preview(button, frame, hit);
  item.append(button);
  return item;
};

// Wide images fill the frame; tall and square ones are shown whole, in front of a blurred copy.
const showWhole = (frame, image) => {
  if (image.naturalWidth >= 1.25 * image.naturalHeight) return;
  const backdrop = image.cloneNode();
  backdrop.className = "backdrop";
  image.before(backdrop);
  frame.classList.add("tall");
};

// Only a pointer that can hover starts a preview; on a phone a tap opens the player.
const HOVER_MILLISECONDS = 180;
const preview = (button, frame, hit) => {
  let timer = 0;
  let video = null;
  const stop = () => {
    clearTimeout(timer);
    if (!video) return;
    video.removeAttribute("src");
    video.load(); // Closes the connection.
    video.remove();
    video = null;
  };
  const start = () => {
    stop();
    video = element("video");
    video.muted = true;
    video.playsInline = true;
    video.tabIndex = -1;
    video.setAttribute("aria-hidden", "true");
    const { start: from, end } = hit.moment;
    let isConverted = false;
    video.addEventListener("loadedmetadata", (event) => {
      if (!isConverted) event.target.currentTime = from;
    });
    video.addEventListener("playing", (event) => event.target.classList.add("live"));
    video.addEventListener("timeupdate", (event) => {
      if (!isConverted && event.target.currentTime > end + 0.2) event.target.currentTime = from;
    });
    video.addEventListener("ended", (event) => {
      event.target.currentTime = isConverted ? 0 : from;
      event.target.play().catch(() => {});
    });
    video.addEventListener("error", (event) => {
      if (isConverted || !event.target.getAttribute("src")) { stop(); return; } // The thumbnail stays.
      isConverted = true;
      event.target.src = `${streamOf(hit)}?start=${from.toFixed(2)}`;
      event.target.play().catch(() => {});
    });
    frame.querySelector(".picture").after(video);
    video.src = `${hit.video}#t=${from.toFixed(2)}`;
    video.play().catch(() => {});
  };
  button.addEventListener("pointerenter", (event) => {
    if (event.pointerType !== "touch") timer = setTimeout(start, HOVER_MILLISECONDS);
  });
  button.addEventListener("pointerleave", stop);
  button.addEventListener("focus", () => {
    if (button.matches(":focus-visible")) timer = setTimeout(start, 2 * HOVER_MILLISECONDS);
  });
  button.addEventListener("blur", stop);
  button.addEventListener("click", stop);
};

export const placeholders = (count) => Array.from({ length: count }, () => {
  const item = element("li", "waiting");
  item.setAttribute("aria-hidden", "true");
  item.append(element("span", "card"));
  return item;
});
