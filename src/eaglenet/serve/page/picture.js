// Search with a picture: chosen, dropped anywhere on the page, or pasted.

const button = document.querySelector("#choose-picture");
const chooser = document.querySelector("#picture-file");
const cover = document.querySelector("#drop");

const pictureIn = (transfer) => [...(transfer?.files ?? [])].find((file) => file.type.startsWith("image/"));

let isAllowed = false;

export const allow = (allowed) => {
  isAllowed = allowed;
  button.hidden = !allowed;
};

export const REFUSED = "Searching with a picture is switched off here: start the service with --allow-uploads.";

export const setUp = (onPicture, onRefusal) => {
  const take = (file) => {
    if (!file) return;
    if (isAllowed) onPicture(file);
    else onRefusal();
  };
  button.addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", () => {
    take(chooser.files[0]);
    chooser.value = "";
  });
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    cover.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) cover.hidden = true;
  });
  addEventListener("drop", (event) => {
    cover.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    take(pictureIn(event.dataTransfer));
  });
  addEventListener("paste", (event) => take(pictureIn(event.clipboardData)));
};
