package catalog

import (
	"errors"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

func TestAsidesRoundTrip(t *testing.T) {
	a := Aside{AuthorityID: "a", Shard: 3, Hour: timegrid.Hour(498_000), Agent: "wéb/1", Series: 7, Records: 8, Bytes: 9, Limit: 10, Reason: "too large", By: "rollup-1", At: 5}
	b := a.Marshal()
	got, err := ParseAside(a.Key(), b)
	if err != nil || got != a {
		t.Fatalf("%+v, %v", got, err)
	}
	other := a
	other.Agent = "web-2"
	for name, bad := range map[string]string{
		"empty": "", "cut": string(b[:len(b)-1]), "space": string(b) + " ", "of another agent": string(other.Marshal()),
		"schema": strings.Replace(string(b), "aside.v1", "beside.v1", 1),
		"bytes":  strings.Replace(string(b), `"bytes":9`, `"bytes":-9`, 1),
		"reason": strings.Replace(string(b), `"too large"`, `""`, 1),
		"long":   string(b) + strings.Repeat(" ", AsideKind.MaxBytes),
	} {
		if _, err := ParseAside(a.Key(), []byte(bad)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAttemptsRoundTrip(t *testing.T) {
	a := Attempt{AuthorityID: "a", Shard: 3, Hour: timegrid.Hour(498_000), Generation: 4, By: "0011", At: 5}
	b := a.Marshal()
	got, err := ParseAttempt(a.Key(), b)
	if err != nil || got != a {
		t.Fatalf("%+v, %v", got, err)
	}
	other := a
	other.Hour++
	for name, bad := range map[string]string{
		"empty": "", "cut": string(b[:len(b)-1]), "of another hour": string(other.Marshal()), "by": strings.Replace(string(b), `"0011"`, `""`, 1),
		"schema": strings.Replace(string(b), "attempt.v1", "attempted.v1", 1), "long": string(b) + strings.Repeat(" ", AttemptKind.MaxBytes),
	} {
		if _, err := ParseAttempt(a.Key(), []byte(bad)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
