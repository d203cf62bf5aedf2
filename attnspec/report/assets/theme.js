// Light or dark: as the system says, until the reader chooses.
const system = matchMedia("(prefers-color-scheme: dark)");
const themeListeners = [];
function stored(key, held) {
  try { // a page opened as a file may be refused any storage
    if (held === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, held);
  } catch (refused) { return null; }
  return null;
}
const isDark = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : system.matches);
function style(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
function showTheme() {
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", String(isDark()));
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  themeListeners.forEach((act) => act());
}
function startTheme() {
  const kept = stored("attnspec-theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  document.getElementById("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    stored("attnspec-theme", document.documentElement.dataset.theme);
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();
}
