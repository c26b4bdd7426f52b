import { render } from "preact";
import { isElsewhere } from "./api/place";
import { App } from "./shell/app";
import { Fence } from "./shell/fence";
import { applyTheme, chosenTheme } from "./shell/theme";
import "./style.css";

applyTheme(chosenTheme());
const page = document.getElementById("page")!;
// What it says until this script is there.
page.replaceChildren();
// The API forbids frames by a header, which another server of the page may not send.
if (isElsewhere() && window.top !== window.self) {
  page.textContent = "detcloud does not run inside a frame of another page.";
} else {
  render(<Fence isWhole><App /></Fence>, page);
}
