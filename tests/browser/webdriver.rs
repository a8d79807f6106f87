//! A headless Chromium, driven through chromedriver by the W3C `WebDriver` protocol.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything here may take until the test gives up. It is no measure of anything.
const PATIENCE: Duration = Duration::from_mins(2);

/// The key that a document names by a character of Unicode's private area.
pub(crate) mod key {
    pub(crate) const TAB: char = '\u{e004}';
    pub(crate) const ENTER: char = '\u{e007}';
    pub(crate) const ESCAPE: char = '\u{e00c}';
    pub(crate) const LEFT: char = '\u{e012}';
}

/// A browser window. Dropping it ends the browser.
pub(crate) struct Browser {
    driver: Child,
    client: Client,
    session: String,
    profile: TempDir,
}

fn program(variable: &str, usual: &str) -> String {
    env::var(variable).unwrap_or_else(|_| usual.to_owned())
}

/// Starts a driver, and returns it with its port; `None` if it ended.
fn start() -> Option<(Child, u16)> {
    let mut driver = Command::new(program("CHROMEDRIVER", "chromedriver"))
        .arg("--port=0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver can be started; tests/browser/run says what is missing");
    // It says its port there, unless it is told to log nothing.
    let output = BufReader::new(driver.stdout.take().unwrap());
    let port = output.lines().find_map(|line| {
        let line = line.unwrap();
        let (_, port) = line.split_once("started successfully on port ")?;
        port.trim_end_matches('.').parse::<u16>().ok()
    });
    if port.is_none() {
        let _ended = driver.wait();
    }

    Some((driver, port?))
}

impl Browser {
    pub(crate) async fn open() -> Self {
        // It takes a free port of IPv4, and ends if another program has the same one of IPv6.
        let (driver, port) = (0..5).find_map(|_| start()).expect("chromedriver listens");
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Self {
            driver,
            client: Client::builder().no_proxy().build().unwrap(),
            session: format!("http://127.0.0.1:{port}/session"),
            profile,
        };
        browser.begin().await;
        browser
    }

    async fn begin(&mut self) {
        let profile = format!("--user-data-dir={}", self.profile.path().display());
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1280,900",
            &profile,
        ];
        let options = json!({"binary": chromium(), "args": arguments});
        let logs = json!({"browser": "ALL", "performance": "ALL"});
        let always = json!({"goog:chromeOptions": options, "goog:loggingPrefs": logs});
        let session = self
            .send(Method::POST, "", Some(json!({"capabilities": {"alwaysMatch": always}})))
            .await;
        write!(self.session, "/{}", session["sessionId"].as_str().unwrap()).unwrap();
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let request = self.client.request(method, format!("{}{path}", self.session));
        let request = request.timeout(PATIENCE);
        let request = match body {
            Some(body) => request.header("Content-Type", "application/json").body(body.to_string()),
            None => request,
        };
        let answer = request.send().await.unwrap();
        let ok = answer.status().is_success();
        let text = answer.text().await.unwrap();
        assert!(ok, "{path}: {text}");
        let mut answer: Value = serde_json::from_str(&text).unwrap();
        answer["value"].take()
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.send(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn go(&self, url: &str) {
        self.post("/url", json!({"url": url})).await;
    }

    /// What a function with this body returns in the page.
    pub(crate) async fn js(&self, body: &str) -> Value {
        self.post("/execute/sync", json!({"script": body, "args": []})).await
    }

    /// Waits until the expression is true in the page.
    pub(crate) async fn until(&self, expression: &str) {
        if !self.comes_true(expression).await {
            self.screenshot("failed").await;
            panic!("never: {expression}");
        }
    }

    async fn comes_true(&self, expression: &str) -> bool {
        let holds = async {
            while self.js(&format!("return Boolean({expression});")).await != true {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(PATIENCE, holds).await.is_ok()
    }

    /// Presses keys, one after the other.
    pub(crate) async fn press(&self, keys: &[char]) {
        let presses = keys.iter().flat_map(|key| {
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        });
        let presses: Vec<_> = presses.collect();
        let actions = json!([{"type": "key", "id": "keyboard", "actions": presses}]);
        self.post("/actions", json!({"actions": actions})).await;
    }

    /// Gives the page this much room, whatever the window has.
    pub(crate) async fn resize(&self, width: u64, height: u64) {
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.chrome("Emulation.setDeviceMetricsOverride", metrics).await;
        assert!(self.comes_true(&format!("innerWidth === {width}")).await, "never {width} wide");
    }

    /// Lets the system behind the browser prefer `dark` or `light`.
    pub(crate) async fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.chrome("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    async fn chrome(&self, command: &str, parameters: Value) {
        self.post("/goog/cdp/execute", json!({"cmd": command, "params": parameters})).await;
    }

    /// The entries of the browser's log of this kind since they were last asked for.
    pub(crate) async fn log(&self, kind: &str) -> Vec<Value> {
        let entries = self.post("/se/log", json!({"type": kind})).await;
        entries.as_array().unwrap().clone()
    }

    /// Writes the whole page as a picture into `target/browser`.
    pub(crate) async fn screenshot(&self, name: &str) {
        let size = "return [innerWidth, innerHeight, document.scrollingElement.scrollHeight];";
        let size = self.js(size).await;
        let [width, height, whole] = [0, 1, 2].map(|at| size[at].as_u64().unwrap());
        self.resize(width, whole.max(height)).await;
        self.view(name).await;
        self.resize(width, height).await;
    }

    /// Writes the part of the page that is in the window as a picture into `target/browser`.
    pub(crate) async fn view(&self, name: &str) {
        let folder = screenshots();
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{name}.png")), self.picture().await).unwrap();
    }

    /// The part of the page that is in the window, as a PNG.
    pub(crate) async fn picture(&self) -> Vec<u8> {
        let picture = self.send(Method::GET, "/screenshot", None).await;
        base64_decode(picture.as_str().unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its driver.
        let _gone = self.driver.kill();
        let _gone = self.driver.wait();
    }
}

/// Where Debian and others have Chromium.
fn chromium() -> String {
    env::var("CHROMIUM").unwrap_or_else(|_| {
        let places = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
        let found = places.into_iter().find(|place| Path::new(place).exists());
        found.expect("Chromium is installed; tests/browser/run says how").to_owned()
    })
}

fn screenshots() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("browser")
}

fn base64_decode(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}
