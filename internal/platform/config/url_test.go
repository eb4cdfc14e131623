package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestURLsArePrintedWithoutCredentials(t *testing.T) {
	for url, want := range map[string]string{
		"":                               "",
		"http://h:1/metrics":             "http://h:1/metrics",
		"http://u:hunter2@h:1/metrics":   "http://redacted@h:1/metrics",
		"https://hunter2@h/m":            "https://redacted@h/m",
		"http://h/m?token=hunter2&a=":    "http://h/m?token=redacted&a=",
		"http://h/m?hunter2":             "http://h/m?redacted",
		"http://h/m?a=1&a=hunter2#huntr": "http://h/m?a=redacted&a=redacted",
		"http://h/federate?match[]=up&match%5B%5D={job=%22a%22}&key=hunter2": "http://h/federate?match[]=up&match%5B%5D={job=%22a%22}&key=redacted",
		"http://u:hunter2#x@h/m": "<redacted>",
		"http://u:%zz@h/m":       "<redacted>",
		"mailto:u:hunter2@h":     "mailto:redacted",
	} {
		u := URL(url)
		if got := u.String(); got != want {
			t.Errorf("%s is printed as %s, want %s", url, got, want)
		}
		if u.Reveal() != url {
			t.Errorf("Reveal of %s: %s", url, u.Reveal())
		}
		js, err := json.Marshal(map[string]URL{"url": u})
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "url", u)
		for _, text := range []string{string(js), log.String(), fmt.Sprintf("%v %s %q %#v", u, u, u, u), fmt.Sprint(Redacted(&struct {
			U URL `koanf:"u"`
		}{u}))} {
			if strings.Contains(text, "hunter2") {
				t.Errorf("%s is printed in %s", url, text)
			}
		}
	}
}

func TestSecretsOfAURL(t *testing.T) {
	got := URL("http://u:p%23ss@h/m?match[]=up&token=a%20b&x=").Secrets()
	if want := "[a b a+b p#ss p%23ss]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
