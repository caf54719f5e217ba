// Draws the charts, and lets the reader choose their horizontal axis and what they show.
"use strict";
(async () => {
  Bokeh.set_log_level("warn");
  const items = JSON.parse(document.getElementById("chart-data").textContent);
  await Promise.all(items.map((item) => Bokeh.embed.embed_item(item)));
  const charts = Bokeh.documents.flatMap((one) => one.roots());

  // Dragging zooms with a mouse; on a touch screen it scrolls the page.
  if (matchMedia("(pointer: fine)").matches) {
    for (const chart of charts) {
      chart.toolbar.active_drag = chart.toolbar.tools.find((tool) => tool.type === "BoxZoomTool") ?? null;
    }
  }

  function show(box) {
    const shown = box.dataset.chart ? charts.filter((chart) => chart.name === box.dataset.chart) : charts;
    for (const chart of shown) {
      for (const renderer of chart.renderers) {
        if (renderer.tags.includes(box.dataset.tag)) renderer.visible = box.checked;
      }
    }
  }

  function choose(axis) {
    for (const chart of charts) {
      const sources = new Set(chart.renderers.map((renderer) => renderer.data_source));
      let moved = false;
      for (const source of sources) {
        if (!(axis.value in source.data)) continue;
        source.data = { ...source.data, x: source.data[axis.value] };
        moved = true;
      }
      if (!moved) continue;
      chart.below[0].axis_label = axis.dataset.label;
      chart.x_range.reset();
      chart.y_range.reset();
    }
  }

  for (const box of document.querySelectorAll("input[data-tag]")) {
    box.checked = true; // browsers remember what was unchecked before a reload
    box.addEventListener("change", () => show(box));
  }
  for (const axis of document.querySelectorAll("input[name=axis]")) {
    axis.checked = axis.value === "step";
    axis.addEventListener("change", () => choose(axis));
  }
  document.body.dataset.drawn = String(charts.length);
})();
