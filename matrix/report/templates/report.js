"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const MARKS = { built: "●", published: "◆", present: "■", buildable: "○", impossible: "–" };
  const STATES = {
    built: "built, in the index",
    published: "published elsewhere",
    present: "in the base image",
    buildable: "can be built",
    impossible: "impossible",
  };
  const byId = (id) => document.getElementById(id);

  /** Create an element; texts are never parsed as HTML. */
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  const announce = (text) => { byId("status").textContent = text; };

  // ---- the side panel ----

  const panel = byId("panel");
  let opener = null;

  function openPanel(title, children, from) {
    const heading = element("h2", { id: "panel-title", tabindex: "-1" }, title);
    byId("panel-content").replaceChildren(heading, ...children);
    opener = from;
    if (!panel.open) panel.show();
    panel.scrollTop = 0;
    heading.focus();
  }

  function closePanel() {
    panel.close();
    if (opener) opener();
  }

  byId("close").addEventListener("click", closePanel);
  panel.addEventListener("keydown", (event) => { if (event.key === "Escape") closePanel(); });

  const SOURCE = /https?:\/\/[^\s,;()<>"']+|(?:git:)?([\w.-]+\/[\w.-]+)@([0-9a-f]{7,40})(?::([^\s,()]+))?/g;

  /** Return a source, with links to the pages that it names. */
  function sourceOf(text) {
    const small = element("small", { class: "source" });
    let at = 0;
    for (const match of text.matchAll(SOURCE)) {
      const [shown, repository, commit, path] = match;
      const url = repository
        ? `https://github.com/${repository}/${path ? `blob/${commit}/${path}` : `tree/${commit}`}`
        : shown;
      small.append(text.slice(at, match.index), element("a", { href: url, rel: "noreferrer" }, shown));
      at = match.index + shown.length;
    }
    small.append(text.slice(at));
    return small;
  }

  function factList(facts) {
    return element("ul", { class: "facts" }, ...facts.map(([text, status, source, note]) => element("li", {},
      text, " ", status && status !== "fact" ? element("span", { class: `badge ${status}` }, status) : "",
      note ? element("br") : "", note ? element("small", {}, note) : "",
      source ? element("br") : "", source ? sourceOf(source) : "")));
  }

  function commandBox(command) {
    const text = element("pre", {}, command);
    const button = element("button", { type: "button" }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command);
      } catch {
        getSelection().selectAllChildren(text);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      announce("Copied");
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    return element("div", { class: "copy" }, text, button);
  }

  const quote = (word) => /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

  // ---- the table ----

  function startTable(table) {
    const columns = table.columns;
    const rows = table.rows.map(([group, torch, python, ...cells], id) => {
      const row = { id, group, torch, python };
      const texts = [table.groups[group].heading, ...table.groups[group].images, torch, python, id === table.locked ? "locked" : ""];
      cells.forEach((number, place) => {
        const cell = table.cells[number];
        row[`c${place}`] = cell;
        texts.push(`${columns[place].name} ${cell.state} ${cell.text}`);
      });
      row.text = texts.join("\n").toLowerCase();
      return row;
    });
    const collator = new Intl.Collator("en", { numeric: true });

    /** Compare cells: impossible cells come last in ascending order, versions are compared by their numbers. */
    const sorter = (one, other) =>
      (one.state === "impossible") - (other.state === "impossible") || collator.compare(one.text, other.text);

    function formatCell(cell) {
      const value = cell.getValue();
      const column = columns[Number(cell.getField().slice(1))].name;
      const button = element("span", {
        class: `cell ${value.state}`, tabindex: "-1", role: "button",
        "aria-label": `${column}: ${value.state === "impossible" ? "impossible because of " : ""}${value.text}, ${STATES[value.state]}`,
        title: value.text,
      }, element("span", { class: "mark", "aria-hidden": "true" }, MARKS[value.state]), value.text);
      return button;
    }

    const plainCell = (cell) => element("span", { title: cell.getValue() }, cell.getValue());
    const isLocked = (row) => row.getData().id === table.locked;
    const pythonCell = (cell) => element("span", {}, cell.getValue(), isLocked(cell.getRow()) ? " " : null,
      isLocked(cell.getRow()) ? element("span", { class: "badge" }, "locked") : null);

    // Folding groups one by one would draw the table each time. So all groups are replaced: Tabulator calls
    // `groupStartOpen` for every new key.
    const lockedGroup = rows[table.locked]?.group;
    let generation = 0, areOpen = null;
    const keyOf = (row) => `${generation}:${row.group}`;
    const startsOpen = (key) => areOpen ?? (table.groups.length <= 3 || key === "0:0" || key === `0:${lockedGroup}`);

    function replaceGroups(open) {
      generation += 1;
      areOpen = open;
    }

    const groupOf = (key) => table.groups[Number(key.split(":")[1])];
    const titleOf = (group) => `${group.heading}${group.risk ? ", at your own risk" : ""}`;

    function imagesOf(group) {
      const images = group.images.length;
      return images ? `${images} ${images === 1 ? "image" : "images"}: ${group.images.join(", ")}` : "";
    }

    function groupHeaderPrint(key) {
      const group = groupOf(key), shown = imagesOf(group);
      return `${titleOf(group)}${shown ? `; ${shown}` : ""}`;
    }

    function groupHeader(key, count) {
      const group = groupOf(key), text = titleOf(group), shown = imagesOf(group);
      const button = element("button", { type: "button", class: "group", tabindex: "0", title: group.images.join("\n") },
        element("span", { class: "fold", "aria-hidden": "true" }), text,
        element("span", { class: "muted" }, `${count} ${count === 1 ? "row" : "rows"}${shown ? `; ${shown}` : ""}`));
      return element("span", { role: "gridcell" }, button);
    }

    addEventListener("beforeprint", () => unfoldAll(true)); // before Tabulator's own listener, which copies the rows
    const grid = new Tabulator("#table", {
      data: rows,
      maxHeight: "75vh",
      layout: "fitData",
      layoutColumnsOnNewData: false,
      renderVerticalBuffer: 400,
      rowHeight: 33,
      rowFormatter: (row) => row.getElement().classList.toggle("locked", isLocked(row)),
      groupBy: keyOf,
      groupStartOpen: startsOpen,
      groupToggleElement: "header",
      groupHeader,
      groupHeaderPrint,
      columnDefaults: { headerHozAlign: "left", resizable: false },
      columns: [
        { title: "torch", field: "torch", frozen: true, width: innerWidth > 600 ? 150 : 110, sorter: (one, other) => collator.compare(one, other), formatter: plainCell },
        { title: "Python", field: "python", frozen: innerWidth > 600, width: 110, sorter: (one, other) => collator.compare(one, other), formatter: pythonCell,
          formatterPrint: (cell) => cell.getValue() + (isLocked(cell.getRow()) ? " locked" : "") },
        ...columns.map((column, place) => ({
          title: column.name, field: `c${place}`, width: widthOf(place), sorter, formatter: formatCell,
          formatterPrint: (cell) => `${MARKS[cell.getValue().state]} ${cell.getValue().text}`,
        })),
      ],
      printAsHtml: true, printStyled: false, printRowRange: "active",
      printConfig: { columnGroups: false, rowGroups: true, columnCalcs: false, formatCells: true },
    });

    function widthOf(place) {
      const longest = rows.reduce((most, row) => Math.max(most, row[`c${place}`].text.length), 0);
      return Math.max(columns[place].name.length * 8.5 + 36, Math.min(22, longest) * 8 + 40);
    }

    // Filters.
    const filter = byId("filter"), state = byId("state"), chosen = byId("package");
    columns.forEach((column, place) => chosen.append(element("option", { value: `c${place}` }, column.name)));
    const matchesState = (cell) => !state.value || cell.state === state.value ||
      (state.value === "possible" && cell.state !== "impossible");
    let wasSet = false;

    function unfoldAll(isOpen) {
      replaceGroups(isOpen);
      grid.setGroupStartOpen(startsOpen);
    }

    function applyFilter() {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const fields = chosen.value ? [chosen.value] : columns.map((_, place) => `c${place}`);
      const isSet = words.length || state.value;
      if (isSet && !wasSet) replaceGroups(true);
      wasSet = Boolean(isSet);
      grid.setFilter((row) => words.every((word) => row.text.includes(word)) &&
        (!state.value || fields.some((field) => matchesState(row[field]))));
      for (const [place] of columns.entries()) {
        const column = grid.getColumn(`c${place}`);
        const isShown = !chosen.value || chosen.value === `c${place}`;
        if (isShown !== column.isVisible()) isShown ? column.show() : column.hide();
      }
      showCount();
    }

    function showCount() {
      const count = grid.getDataCount("active");
      byId("count").textContent = `${count} of ${rows.length} rows`;
    }

    let timer = 0;
    filter.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(applyFilter, 120); });
    state.addEventListener("change", applyFilter);
    chosen.addEventListener("change", applyFilter);
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("unfold").addEventListener("click", () => unfoldAll(true));
    byId("fold").addEventListener("click", () => unfoldAll(false));
    byId("filters").hidden = false;

    // Cells: mouse and keyboard.
    const focusCell = (row, field) => {
      const cell = row.getCell(field).getElement().querySelector(".cell");
      if (cell) cell.focus({ preventScroll: false });
    };

    function showCell(cell) {
      const value = cell.getValue(), row = cell.getRow(), field = cell.getField();
      const place = Number(field.slice(1));
      const record = row.getData();
      const group = table.groups[record.group];
      const title = `${columns[place].name} ${value.state === "impossible" ? "" : value.text}`.trim();
      const where = [group.heading, `torch ${record.torch}`, `Python ${record.python}`, group.images[0] || ""];
      const children = [
        element("p", { class: "muted" }, where.filter(Boolean).join(", ")),
        element("p", { class: value.state }, `${MARKS[value.state]} ${STATES[value.state]}`, group.risk ? ", at your own risk" : ""),
      ];
      if (value.state === "impossible") {
        children.push(element("p", {}, value.text === "combination"
          ? "No single fact excludes every version, but no version resolves."
          : `No version works, because of facts about ${value.text}.`));
      } else {
        children.push(element("h3", {}, `Why ${value.name} ${value.text}`), factList(value.facts.map((number) => table.facts[number])));
      }
      children.push(element("h3", {}, value.state === "impossible" ? "Show every fact behind this answer" : "Lock these versions"),
        commandBox(resolveCommand(record, place)));
      if (value.state === "buildable") {
        children.push(element("h3", {}, "Then build the missing wheels"), commandBox(`matrix build-wheels ${quote(value.name)}`));
      }
      openPanel(title, children, () => focusCell(row, field));
    }

    function resolveCommand(record, place) {
      const group = table.groups[record.group];
      const torch = `torch${record.torch.includes("+") ? "==" : "==="}${record.torch}`;
      const requirements = [...columns[place].requirements, torch, `python==${record.python.split(" ").at(-1)}`, ...table.limits]
        .filter((requirement) => requirement !== "torch" && requirement !== "python");
      const image = group.images.length ? ["--base-image", group.images[0]] : [];
      return ["matrix", "resolve", ...new Set(requirements), ...table.options, ...image].map(quote).join(" ");
    }

    grid.on("cellClick", (_, cell) => { if (cell.getField().startsWith("c")) showCell(cell); });

    function cellOf(target) {
      const node = target.closest(".tabulator-cell");
      if (!node) return null;
      const row = grid.getRow(target.closest(".tabulator-row"));
      return row ? row.getCell(node.getAttribute("tabulator-field")) : null;
    }

    /** Return the next or previous row that is shown, which may be in another group. */
    function neighbour(row, step) {
      const shown = grid.getRows("display").filter((one) => "getCells" in one);
      return shown[shown.findIndex((other) => other.getData().id === row.getData().id) + step];
    }

    byId("table").addEventListener("keydown", (event) => {
      const cell = event.target.classList.contains("cell") ? cellOf(event.target) : null;
      if (!cell) return;
      const row = cell.getRow(), place = Number(cell.getField().slice(1));
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-15, 0], PageDown: [15, 0] };
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        showCell(cell);
      } else if (event.key in steps) {
        event.preventDefault();
        const [down, right] = steps[event.key];
        const next = down ? neighbour(row, down) : row;
        const field = `c${place + right}`;
        if (!next || !columns[place + right]) return;
        if (down) grid.scrollToRow(next, "nearest", false).catch(() => {});
        if (right) grid.scrollToColumn(field, "middle", false).catch(() => {});
        focusCell(next, field);
      }
    });

    /** Make one cell reachable with Tab; the arrow keys reach the others. */
    function offerFirstCell() {
      if (byId("table").querySelector(".cell[tabindex='0']")) return;
      const first = byId("table").querySelector(".cell");
      if (first) first.tabIndex = 0;
    }

    byId("table").addEventListener("focusin", (event) => {
      if (!event.target.classList.contains("cell")) return;
      byId("table").querySelectorAll(".cell[tabindex='0']").forEach((cell) => { cell.tabIndex = -1; });
      event.target.tabIndex = 0;
    });
    /** Correct the roles: Tabulator nests headings of groups as row groups, which screen readers cannot read. */
    function repairRoles() {
      byId("table").querySelectorAll(".tabulator-group").forEach((heading) => {
        heading.setAttribute("role", "row");
        heading.querySelector("button").setAttribute("aria-expanded", heading.classList.contains("tabulator-group-visible"));
      });
    }

    /** Set the width of the rows: with a known size, scrolling requires little layout work. */
    function setWidth() {
      const widths = grid.getColumns().filter((column) => column.isVisible()).map((column) => column.getWidth());
      byId("table").style.setProperty("--width", `${widths.reduce((sum, width) => sum + width, 0)}px`);
    }

    for (const event of ["columnVisibilityChanged", "tableBuilt"]) grid.on(event, setWidth);
    for (const event of ["renderComplete", "scrollVertical", "groupVisibilityChanged"]) {
      grid.on(event, () => requestAnimationFrame(() => { repairRoles(); offerFirstCell(); }));
    }
    grid.on("tableBuilt", () => {
      byId("table").querySelector(".tabulator-tableholder").removeAttribute("tabindex");
      byId("table").querySelectorAll(".tabulator-col").forEach((head) => {
        head.tabIndex = 0;
        head.addEventListener("keydown", (event) => { if (event.key === "Enter") head.click(); });
      }); showCount(); byId("table").dataset.ready = "yes"; });
    return grid;
  }

  // ---- the graph ----

  function startGraph(graph) {
    const NAMES = { ...STATES, published: "published", pip: "left to pip", running: "being built", failed: "failed", interrupted: "interrupted" };

    function showNode(node, opener) {
      const needs = graph.edges.filter((edge) => edge.from === node.name);
      const list = (kind) => needs.filter((edge) => edge.kind === kind)
        .map((edge) => edge.to + (edge.declared ? "" : " (undeclared)")).join(", ") || "nothing";
      openPanel(`${node.name} ${node.version}`.trim(), [
        element("p", { class: node.state }, NAMES[node.state]),
        element("p", {}, `To run: ${list("run")}. To build: ${list("build")}.`),
        ...(node.facts.length ? [element("h3", {}, "Why"), factList(node.facts)] : []),
        ...(node.state === "buildable" || node.state === "failed" || node.state === "interrupted"
          ? [element("h3", {}, "Build it"), commandBox(`matrix build-wheels ${quote(node.name)}`)] : []),
      ], opener);
    }

    const order = [...graph.nodes].sort((one, other) => one.generation - other.generation);
    byId("graph-list").tBodies[0].append(...order.map((node) => {
      const button = element("button", { type: "button" }, `${node.name} ${node.version}`.trim());
      button.addEventListener("click", () => showNode(node, () => button.focus()));
      const needs = graph.edges.filter((edge) => edge.from === node.name).map((edge) => `${edge.to} (${edge.kind}${edge.declared ? "" : ", undeclared"})`);
      return element("tr", {}, element("td", {}, String(node.generation)), element("th", { scope: "row" }, button),
        element("td", { class: node.state }, NAMES[node.state]), element("td", {}, needs.join(", ")));
    }));
  }

  addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((one) => { one.open = true; }));
  document.querySelectorAll("pre.command").forEach((command) => {
    command.replaceWith(commandBox(command.textContent));
  });
  if (data.graph) startGraph(data.graph);
  if (data.table) window.matrixTable = startTable(data.table);
})();
