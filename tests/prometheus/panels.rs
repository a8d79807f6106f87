//! Pictures of the dashboards, drawn with Grafana's own components in a headless Chromium.
//!
//! `tests/panels/run` bundles the page that draws, and runs this. It leaves a page and a picture of
//! each dashboard in each theme in `target/panels`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::dashboards::{Query, dashboards, root};
use crate::stage::Stage;
use crate::webdriver::Browser;
use crate::{every_panel_shows_something, the_fleet_grows};

/// The shown time, in seconds: about as long as the demo has run when each panel has shown something.
const SHOWN: f64 = 180.0;

/// The time between two points, in seconds.
const STEP: u32 = 2;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("panels")
}

/// Grafana's themes.
const MODES: [&str; 2] = ["dark", "light"];

/// The dashboard with the answer to each of its queries, for `tests/panels/panels.js`.
async fn scene(stage: &Stage, dashboard: &Value) -> Value {
    let now = stage.now().await;
    let (mut answers, mut absent) = (Map::new(), Vec::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let mut of_panel = Map::new();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = Query::of(panel["title"].to_string(), target);
            let answer = query.answer(stage, now - SHOWN, now, STEP).await;
            assert_eq!(answer["status"], "success", "{}: {answer}", query.panel);
            let letter = target["refId"].as_str().unwrap().to_owned();
            of_panel.insert(letter, answer["data"]["result"].clone());
            if query.is_of_elsewhere() {
                absent.push(panel["id"].clone());
            }
        }
        answers.insert(panel["id"].to_string(), Value::Object(of_panel));
    }
    let variables = json!({
        "datasource": "prometheus", "job": ".*", "namespace": ".*", "model": ".*", "variant": ".*",
        "top": "10", "plimsoll": stage.page, "runbooks": "https://docs.example",
    });
    json!({
        "dashboard": dashboard, "answers": answers, "absent": absent, "variables": variables,
        "from": (now - SHOWN) * 1000.0, "to": now * 1000.0, "step": STEP,
    })
}

/// Writes the page of a dashboard, and returns its path.
fn write_page(name: &str, scene: &Value) -> PathBuf {
    // A string of JSON may not end the script that has it.
    let scene = scene.to_string().replace("</", "<\\/");
    let page = format!(
        "<!doctype html><meta charset=utf-8><title>{name}</title>\
         <link rel=stylesheet href=panels.css><body><script>window.SCENE = {scene}</script>\
         <script src=panels.js></script>"
    );
    let path = folder().join(format!("{name}.html"));
    std::fs::write(&path, page).unwrap();
    path
}

/// Draws a scene, takes its picture, and returns what it reports of each panel.
async fn draw(browser: &Browser, name: &str, scene: &Value) -> Vec<Value> {
    let page = write_page(name, scene);
    browser.resize(1640, 900).await;
    browser.go(&format!("file://{}", page.display())).await;
    browser.until("window.REPORT").await;
    let tall = browser.js("return document.scrollingElement.scrollHeight;").await;
    browser.resize(1640, tall.as_u64().unwrap()).await;
    std::fs::write(folder().join(format!("{name}.png")), browser.picture().await).unwrap();

    let report = browser.js("return window.REPORT;").await;
    report.as_array().unwrap().clone()
}

#[tokio::test]
#[ignore = "tests/panels/run bundles the page that draws them"]
async fn every_panel_draws_its_data_with_names_and_units_and_leads_to_the_status_page() {
    let stage = Stage::open(&root("alerts")).await;
    the_fleet_grows(&stage).await;
    every_panel_shows_something(&stage).await;

    let browser = Browser::open().await;
    let (mut wrong, mut links) = (Vec::new(), Vec::new());
    for dashboard in dashboards() {
        let panels = dashboard["panels"].as_array().unwrap();
        let drawn = panels.iter().filter(|panel| panel["type"] != "row").count();
        let mut scene = scene(&stage, &dashboard).await;
        for mode in MODES {
            scene["mode"] = mode.into();
            let name = format!("{}-{mode}", dashboard["uid"].as_str().unwrap());
            let report = draw(&browser, &name, &scene).await;
            assert_eq!(report.len(), drawn, "{name}: {report:?}");
            for panel in report {
                let problems = panel["problems"].as_array().unwrap().iter();
                wrong.extend(problems.map(|it| format!("{name} / {}: {it}", panel["title"])));
                links.extend(panel["links"].as_array().unwrap().iter().cloned());
            }
        }
        for link in dashboard["links"].as_array().unwrap() {
            // The other one leads to the documentation, whose pages another test knows.
            if let Some(rest) = link["url"].as_str().unwrap().strip_prefix("${plimsoll}") {
                links.push(format!("{}{rest}", stage.page).into());
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let mut opened = 0;
    links.sort_by_key(ToString::to_string);
    links.dedup();
    for link in links.iter().map(|it| it.as_str().unwrap()) {
        assert!(!link.contains("${"), "{link}");
        if link.starts_with(&stage.page) {
            browser.go("about:blank").await;
            browser.go(link).await;
            let shown = match link.split_once('#') {
                Some((_, variant)) => format!("document.getElementById('details-{variant}')"),
                None => "document.body.textContent.includes('llama-h100')".to_owned(),
            };
            browser.until(&shown).await;
            opened += 1;
        }
    }
    assert!(opened >= 5, "{opened} links to the status page");
}
