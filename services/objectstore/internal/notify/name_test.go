package notify

import (
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
)

func TestNamesOfEvents(t *testing.T) {
	for want, e := range map[string]engine.Event{
		"ObjectCreated:Put":                       {},
		"LifecycleExpiration:Delete":              {Removed: true, Expired: true},
		"LifecycleExpiration:DeleteMarkerCreated": {Removed: true, Expired: true, Marker: true},
		"ObjectRemoved:Delete":                    {Removed: true},
	} {
		if got := name(&e); got != want || !ValidEvent("s3:"+want) {
			t.Errorf("%+v: %s, want %s", e, got, want)
		}
		s := Sender{Options: Options{Hook: Hook{Events: []string{"s3:ObjectRemoved:*"}}}}
		if s.matches(&e) != (want == "ObjectRemoved:Delete") {
			t.Errorf("%s and a hook for removals", want)
		}
	}
}
