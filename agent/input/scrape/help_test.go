package scrape

import (
	"strings"
	"testing"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/agent/input"
)

// parsed gives the series of a body by name.
func parsed(t *testing.T, p *parser, body, contentType string) map[string]*input.Series {
	t.Helper()
	p.tracker.Begin()
	samples, err := p.parse([]byte(body), contentType, 1)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*input.Series{}
	for _, s := range samples {
		out[s.Series.Labels[0].Value] = s.Series
	}
	return out
}

// TestHelp: every series of a family has its help, in both formats and whatever the order of the
// lines; what only begins like it has not.
func TestHelp(t *testing.T) {
	target := Target{Job: "j"}.WithDefaults(1)
	for contentType, body := range map[string]string{
		"text/plain": "# HELP lat Latency,\\nin seconds.\n# TYPE lat histogram\nlat_bucket{le=\"+Inf\"} 1\nlat_sum 1\nlat_count 1\nlat_other 1\n" +
			"# TYPE up2 gauge\n# HELP up2 Up.\nup2 1\nbare 1\n# HELP only Without a type.\nonly 1\nonly_longer 1\n# HELP empty\n# TYPE empty gauge\nempty 1\n",
		"application/openmetrics-text; version=1.0.0": "# HELP lat Latency,\\nin seconds.\n# TYPE lat histogram\nlat_bucket{le=\"+Inf\"} 1\nlat_sum 1\nlat_count 1\n" +
			"# HELP work Work \\\"done\\\".\n# TYPE work counter\nwork_total 3\n# TYPE up2 gauge\n# HELP up2 Up.\nup2 1\n# EOF\n",
	} {
		p := newParser(target)
		first := parsed(t, p, body, contentType)
		for name, want := range map[string]string{
			"lat_bucket": "Latency,\nin seconds.", "lat_sum": "Latency,\nin seconds.", "lat_count": "Latency,\nin seconds.", "lat_other": "",
			"up2": "Up.", "bare": "", "only": "Without a type.", "only_longer": "", "empty": "", "work_total": `Work "done".`,
		} {
			if s := first[name]; s != nil && s.Help != want || s == nil && strings.Contains(body, "\n"+name+" ") {
				t.Errorf("%s: %s has %+v, want %q", contentType, name, s, want)
			}
		}
		for name, s := range parsed(t, p, body, contentType) {
			if s != first[name] {
				t.Errorf("%s: the next scrape made another series of %s", contentType, name)
			}
		}
		changed := parsed(t, p, strings.Replace(body, "Up.", "Up or down.", 1), contentType)
		if changed["up2"].Help != "Up or down." || first["up2"].Help != "Up." {
			t.Errorf("%s: a help that changes: %+v", contentType, changed["up2"])
		}
	}
}

// TestHelpIsBounded: long and invalid texts become ones that frames take, and a target that makes
// up texts does not fill the memory.
func TestHelpIsBounded(t *testing.T) {
	p := newParser(Target{Job: "j"}.WithDefaults(1))
	for _, text := range []string{strings.Repeat("é", 5000), "bad \xff", strings.Repeat("x", 2047) + "é" + "tail"} {
		got := p.helpOf([]byte(text))
		if len(got) > 2048 || !utf8.ValidString(got) || got == "" {
			t.Errorf("%.10q… becomes %.10q… of %d bytes", text, got, len(got))
		}
	}
	for i := range 5000 {
		p.helpOf([]byte(strings.Repeat("x", 1000) + string(rune('a'+i%26)) + string(rune(0x4e00+i))))
		if p.helpBytes > maxHelpBytes || len(p.helps) > maxHelpBytes/1000+3 {
			t.Fatalf("%d texts, %d bytes", len(p.helps), p.helpBytes)
		}
	}
}
