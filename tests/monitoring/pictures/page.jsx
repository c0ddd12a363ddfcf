// A dashboard as Grafana shows it: its own components, fed by Prometheus' HTTP interface. What Grafana does itself
// around them, layout, queries and variables, is done here as far as these dashboards need it.
import React from "react";
import { createRoot } from "react-dom/client";
import {
  createTheme,
  dateTime,
  FieldColorModeId,
  FieldType,
  getDisplayProcessor,
} from "@grafana/data";
import {
  BarGauge,
  BigValue,
  BigValueColorMode,
  BigValueGraphMode,
  BigValueTextMode,
  GlobalStyles,
  PanelChrome,
  ThemeContext,
  TimeSeries,
} from "@grafana/ui";

const { dashboard, prometheus, from, to, step } = window.SHOWN;
const CELL = { width: 66, height: 34, gap: 8 };
const theme = createTheme({ colors: { mode: "light" } });
const range = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: "now", to: "now" } };

function filled(text) {
  const window_ = `${Math.max(60, 4 * step)}s`;
  return text
    .replaceAll("$__rate_interval", window_)
    .replaceAll("$__range", `${Math.round(to - from)}s`)
    .replace(/\$\w+/g, ".*");
}

async function ask(target) {
  const parameters = new URLSearchParams({ query: filled(target.expr), start: from, end: to, step });
  const answer = await (await fetch(`${prometheus}/api/v1/query_range?${parameters}`)).json();
  if (answer.status !== "success") throw new Error(`${target.expr}: ${answer.error}`);
  return answer.data.result.map((series) => frame(target, series));
}

function legend(target, labels) {
  if (target.legendFormat !== "__auto")
    return target.legendFormat.replace(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? "");
  return JSON.stringify(labels);
}

function frame(target, series) {
  const values = new Map(series.values.map(([seconds, text]) => [seconds, Number(text)]));
  const times = [];
  for (let at = from; at <= to; at += step) times.push(at);
  return {
    refId: target.refId,
    length: times.length,
    fields: [
      { name: "Time", type: FieldType.time, config: {}, values: times.map((at) => at * 1000) },
      {
        name: "Value",
        type: FieldType.number,
        labels: series.metric,
        config: { displayName: legend(target, series.metric) },
        values: times.map((at) => values.get(at) ?? null),
      },
    ],
  };
}

function prepared(panel, frames) {
  const mode = panel.type === "timeseries" ? FieldColorModeId.PaletteClassic : FieldColorModeId.Thresholds;
  frames.forEach((found, index) => {
    const field = found.fields[1];
    field.config = { ...panel.fieldConfig.defaults, ...field.config, color: { mode } };
    field.state = { seriesIndex: index, displayName: field.config.displayName };
    field.display = getDisplayProcessor({ field, theme, timeZone: "browser" });
    const time = found.fields[0];
    time.display = getDisplayProcessor({ field: time, theme, timeZone: "browser" });
  });
  return frames;
}

const last = (field) => [...field.values].reverse().find((value) => value !== null) ?? null;

function Body({ panel, frames, width, height }) {
  if (!frames.length)
    return <div style={{ textAlign: "center", paddingTop: height / 3, color: "#888" }}>No data</div>;
  if (panel.type === "timeseries")
    return (
      <TimeSeries
        frames={frames}
        structureRev={1}
        timeRange={range}
        timeZone="browser"
        width={width}
        height={height}
        legend={panel.options.legend}
        options={panel.options}
      />
    );
  if (panel.type === "stat")
    return (
      <BigValue
        value={frames[0].fields[1].display(last(frames[0].fields[1]))}
        sparkline={{ y: frames[0].fields[1], x: frames[0].fields[0] }}
        colorMode={BigValueColorMode.Value}
        graphMode={BigValueGraphMode.Area}
        textMode={BigValueTextMode.Value}
        theme={theme}
        width={width}
        height={height}
      />
    );
  const bar = Math.min(40, height / frames.length);
  return frames.map((found, index) => (
    <BarGauge
      key={index}
      value={{ ...found.fields[1].display(last(found.fields[1])), title: found.fields[1].config.displayName }}
      field={{ ...found.fields[1].config, min: 0 }}
      display={found.fields[1].display}
      theme={theme}
      width={width}
      height={bar}
      displayMode="basic"
    />
  ));
}

function Panel({ panel, frames }) {
  const { x, y, w, h } = panel.gridPos;
  const place = {
    position: "absolute",
    left: x * CELL.width + CELL.gap,
    top: y * CELL.height + 40,
    width: w * CELL.width - CELL.gap,
    height: h * CELL.height - CELL.gap,
  };
  if (panel.type === "row")
    return <div style={{ ...place, fontWeight: 600, paddingTop: 6 }}>{`⌄ ${panel.title}`}</div>;
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} width={place.width} height={place.height}>
        {(width, height) => <Body panel={panel} frames={frames} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

async function main() {
  const shown = await Promise.all(
    dashboard.panels.map(async (panel) => {
      const targets = (panel.targets ?? []).filter((target) => target.expr);
      return [panel, prepared(panel, (await Promise.all(targets.map(ask))).flat())];
    }),
  );
  const rows = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  createRoot(document.getElementById("root")).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles isExtensionSidebarOpen={false} />
      <div style={{ position: "relative", height: rows * CELL.height + 48, background: "#f4f5f5" }}>
        <div style={{ padding: "10px 12px", fontSize: 18, fontWeight: 500 }}>{dashboard.title}</div>
        {shown.map(([panel, frames]) => (
          <Panel key={panel.id} panel={panel} frames={frames} />
        ))}
      </div>
    </ThemeContext.Provider>,
  );
}

main().catch((error) => {
  document.body.textContent = error.stack;
});
