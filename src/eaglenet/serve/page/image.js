// Search with an image: chosen, dropped anywhere on the page, or pasted.

const button = document.querySelector("#choose-image");
const chooser = document.querySelector("#image-file");
const overlay = document.querySelector("#drop");

const imageIn = (transfer) => [...(transfer?.files ?? [])].find((file) => file.type.startsWith("image/"));

let isAllowed = false;

export const setAllowed = (value) => {
  isAllowed = value;
  button.hidden = !value;
};

export const REFUSAL = "Search with images is switched off: start the service with --allow-uploads.";

export const setUp = (onImage, onRefusal) => {
  const handle = (file) => {
    if (!file) return;
    if (isAllowed) onImage(file);
    else onRefusal();
  };
  button.addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", () => {
    handle(chooser.files[0]);
    chooser.value = "";
  });
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    overlay.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) overlay.hidden = true;
  });
  addEventListener("drop", (event) => {
    overlay.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    handle(imageIn(event.dataTransfer));
  });
  addEventListener("paste", (event) => handle(imageIn(event.clipboardData)));
};
