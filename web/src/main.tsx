import { render } from "preact";
import { App } from "./shell/app";
import { applyTheme, chosenTheme } from "./shell/theme";
import "./style.css";

applyTheme(chosenTheme());
render(<App />, document.getElementById("page")!);
