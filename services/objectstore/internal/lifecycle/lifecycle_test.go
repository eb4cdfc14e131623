package lifecycle

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

func at(text string) time.Time {
	t, err := time.Parse("2006-01-02T15:04:05", text)
	if err != nil {
		panic(err)
	}
	return t
}

func config(t testing.TB, rules string) *Config {
	t.Helper()
	c, err := Parse([]byte("<LifecycleConfiguration>" + rules + "</LifecycleConfiguration>"))
	if err != nil {
		t.Fatalf("%s: %v", rules, err)
	}
	return c
}

func rule(id, filter, action string) string {
	return "<Rule><ID>" + id + "</ID><Status>Enabled</Status><Filter>" + filter + "</Filter>" + action + "</Rule>"
}

const (
	inThreeDays = "<Expiration><Days>3</Days></Expiration>"
	markersToo  = "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>"
	old         = "<NoncurrentVersionExpiration><NoncurrentDays>2</NoncurrentDays></NoncurrentVersionExpiration>"
	oldButTwo   = "<NoncurrentVersionExpiration><NoncurrentDays>2</NoncurrentDays><NewerNoncurrentVersions>2</NewerNoncurrentVersions></NoncurrentVersionExpiration>"
)

// The days are counted as AWS's documents count them: rounded up to midnight UTC.
func TestDecide(t *testing.T) {
	written := at("2014-01-15T10:30:00")
	object := Version{Key: "logs/a", Size: 100, Modified: written, Latest: true, Alone: true,
		Tags: func() ([]engine.Pair, bool) { return []engine.Pair{{Name: "keep", Value: "no"}}, true }}
	with := func(change func(*Version)) Version {
		v := object
		change(&v)
		return v
	}
	noncurrent := with(func(v *Version) { v.Latest, v.Alone, v.Since = false, false, at("2014-02-01T00:00:01") })
	for _, c := range []struct {
		name, rules string
		v           Version
		now         string
		want        Action
		by          string
	}{
		{"before midnight", rule("r", "", inThreeDays), object, "2014-01-18T23:59:59", Keep, ""},
		{"at midnight", rule("r", "", inThreeDays), object, "2014-01-19T00:00:00", Expire, "r"},
		{"written at midnight", rule("r", "", inThreeDays), with(func(v *Version) { v.Modified = at("2014-01-15T00:00:00") }), "2014-01-18T00:00:00", Expire, "r"},
		{"date, before", rule("r", "", "<Expiration><Date>2014-03-01T00:00:00Z</Date></Expiration>"), object, "2014-02-28T23:59:59", Keep, ""},
		{"date", rule("r", "", "<Expiration><Date>2014-03-01T00:00:00Z</Date></Expiration>"), object, "2014-03-01T00:00:00", Expire, "r"},
		{"disabled", "<Rule><ID>r</ID><Status>Disabled</Status><Prefix/>" + inThreeDays + "</Rule>", object, "2020-01-01T00:00:00", Keep, ""},
		{"old form of a prefix", "<Rule><ID>r</ID><Status>Enabled</Status><Prefix>logs/</Prefix>" + inThreeDays + "</Rule>", object, "2020-01-01T00:00:00", Expire, "r"},
		{"prefix", rule("r", "<Prefix>logs/</Prefix>", inThreeDays), object, "2020-01-01T00:00:00", Expire, "r"},
		{"other prefix", rule("r", "<Prefix>log/</Prefix>", inThreeDays), object, "2020-01-01T00:00:00", Keep, ""},
		{"tag", rule("r", "<Tag><Key>keep</Key><Value>no</Value></Tag>", inThreeDays), object, "2020-01-01T00:00:00", Expire, "r"},
		{"other value of a tag", rule("r", "<Tag><Key>keep</Key><Value>yes</Value></Tag>", inThreeDays), object, "2020-01-01T00:00:00", Keep, ""},
		{"tags that cannot be read", rule("r", "<Tag><Key>keep</Key><Value>no</Value></Tag>", inThreeDays), with(func(v *Version) {
			v.Tags = func() ([]engine.Pair, bool) { return []engine.Pair{{Name: "keep", Value: "no"}}, false }
		}), "2020-01-01T00:00:00", Keep, ""},
		{"larger than its size", rule("r", "<ObjectSizeGreaterThan>100</ObjectSizeGreaterThan>", inThreeDays), object, "2020-01-01T00:00:00", Keep, ""},
		{"larger", rule("r", "<ObjectSizeGreaterThan>99</ObjectSizeGreaterThan>", inThreeDays), object, "2020-01-01T00:00:00", Expire, "r"},
		{"smaller than its size", rule("r", "<ObjectSizeLessThan>100</ObjectSizeLessThan>", inThreeDays), object, "2020-01-01T00:00:00", Keep, ""},
		{"all of several", rule("r", "<And><Prefix>logs/</Prefix><Tag><Key>keep</Key><Value>no</Value></Tag><ObjectSizeLessThan>101</ObjectSizeLessThan></And>", inThreeDays), object, "2020-01-01T00:00:00", Expire, "r"},
		{"one of several fails", rule("r", "<And><Prefix>logs/</Prefix><Tag><Key>keep</Key><Value>no</Value></Tag><ObjectSizeLessThan>100</ObjectSizeLessThan></And>", inThreeDays), object, "2020-01-01T00:00:00", Keep, ""},
		{"the first that is due", rule("late", "", "<Expiration><Days>9</Days></Expiration>") + rule("early", "", inThreeDays), object, "2014-01-20T00:00:00", Expire, "early"},
		{"noncurrent, before", rule("r", "", old), noncurrent, "2014-02-03T23:59:59", Keep, ""},
		{"noncurrent", rule("r", "", old), noncurrent, "2014-02-04T00:00:00", Remove, "r"},
		{"noncurrent, but of the newest", rule("r", "", oldButTwo), with(func(v *Version) { *v = noncurrent; v.Newer = 1 }), "2020-01-01T00:00:00", Keep, ""},
		{"noncurrent, behind the newest", rule("r", "", oldButTwo), with(func(v *Version) { *v = noncurrent; v.Newer = 2 }), "2020-01-01T00:00:00", Remove, "r"},
		{"noncurrent rule of a current version", rule("r", "", old), object, "2020-01-01T00:00:00", Keep, ""},
		{"rule of current versions", rule("r", "", inThreeDays), noncurrent, "2020-01-01T00:00:00", Keep, ""},
		{"marker that hides versions", rule("r", "", markersToo), with(func(v *Version) { v.Marker, v.Alone = true, false }), "2020-01-01T00:00:00", Keep, ""},
		{"marker that hides nothing", rule("r", "", markersToo), with(func(v *Version) { v.Marker = true }), "2014-01-15T10:30:00", Remove, "r"},
		{"marker that hides nothing, by days", rule("r", "", inThreeDays), with(func(v *Version) { v.Marker = true }), "2014-01-19T00:00:00", Remove, "r"},
		{"marker and a rule of sizes", rule("r", "<ObjectSizeLessThan>10</ObjectSizeLessThan>", inThreeDays), with(func(v *Version) { v.Marker, v.Size = true, 0 }), "2020-01-01T00:00:00", Keep, ""},
		{"rule of markers and an object", rule("r", "", markersToo), object, "2020-01-01T00:00:00", Keep, ""},
	} {
		if d := config(t, c.rules).Decide(c.v, at(c.now)); d.Action != c.want || d.Rule != c.by {
			t.Errorf("%s: %+v, want %v by %q", c.name, d, c.want, c.by)
		}
	}
	conf := config(t, rule("a", "<Prefix>logs/</Prefix>", "<AbortIncompleteMultipartUpload><DaysAfterInitiation>7</DaysAfterInitiation></AbortIncompleteMultipartUpload>")+
		rule("b", "", "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>"))
	if when, by, ok := conf.AbortAt("logs/a", written); !ok || by != "b" || !when.Equal(at("2014-01-17T00:00:00")) {
		t.Errorf("an upload: %v %q %v", when, by, ok)
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	days := func(n string) string { return "<Expiration><Days>" + n + "</Days></Expiration>" }
	for rules, want := range map[string]error{
		"": s3err.MalformedXML,
		rule("r", "", "<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>"): s3err.NotImplemented,
		rule("r", "", days("0")):        s3err.InvalidArgument,
		rule("r", "", days("-1")):       s3err.InvalidArgument,
		rule("r", "", days("a")):        s3err.MalformedXML,
		rule("r", "", days("99999999")): s3err.InvalidArgument,
		rule("r", "", ""):               s3err.InvalidRequest,
		rule("r", "", "<Expiration/>"):  s3err.MalformedXML,
		rule("r", "", "<Expiration><Days>1</Days><Hours>1</Hours></Expiration>"):                                                                                                 s3err.MalformedXML,
		rule("r", "", "<Expiration><Date>2014-03-01T00:00:01Z</Date></Expiration>"):                                                                                              s3err.InvalidArgument,
		rule("r", "", "<Expiration><Days>1</Days><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>"):                                                      s3err.MalformedXML,
		rule("r", "<Tag><Key>a</Key><Value>b</Value></Tag>", markersToo):                                                                                                         s3err.InvalidRequest,
		rule("r", "<Prefix>a</Prefix><Tag><Key>a</Key><Value>b</Value></Tag>", inThreeDays):                                                                                      s3err.MalformedXML,
		rule("r", "<And><Prefix>a</Prefix></And>", inThreeDays):                                                                                                                  s3err.MalformedXML,
		rule("r", "<Owner>me</Owner>", inThreeDays):                                                                                                                              s3err.MalformedXML,
		rule("r", "<And><ObjectSizeGreaterThan>5</ObjectSizeGreaterThan><ObjectSizeLessThan>5</ObjectSizeLessThan></And>", inThreeDays):                                          s3err.MalformedXML,
		rule("r", "<ObjectSizeLessThan>9</ObjectSizeLessThan>", "<AbortIncompleteMultipartUpload><DaysAfterInitiation>7</DaysAfterInitiation></AbortIncompleteMultipartUpload>"): s3err.InvalidRequest,
		rule("r", "", "<NoncurrentVersionExpiration><NewerNoncurrentVersions>2</NewerNoncurrentVersions></NoncurrentVersionExpiration>"):                                         s3err.MalformedXML,
		rule("r", "", "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays><NewerNoncurrentVersions>101</NewerNoncurrentVersions></NoncurrentVersionExpiration>"):     s3err.InvalidArgument,
		rule("r", "", inThreeDays) + rule("r", "", old):                                                                                                                          s3err.InvalidArgument,
		"<Rule><Status>On</Status><Prefix/>" + inThreeDays + "</Rule>":                                                                                                           s3err.MalformedXML,
		"<Rule><Status>Enabled</Status>" + inThreeDays + "</Rule>":                                                                                                               s3err.MalformedXML,
		"<Rule><Status>Enabled</Status><Prefix/><Filter/>" + inThreeDays + "</Rule>":                                                                                             s3err.MalformedXML,
		"<Rule><Status>Enabled</Status><Prefix/><Action>delete</Action>" + inThreeDays + "</Rule>":                                                                               s3err.MalformedXML,
	} {
		if _, err := Parse([]byte("<LifecycleConfiguration>" + rules + "</LifecycleConfiguration>")); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", rules, err, want)
		}
	}
}

// As many rules as AWS takes, with long names, tags and prefixes: the tags of an object are read once for all of them.
func TestAThousandRules(t *testing.T) {
	var text strings.Builder
	for i := range maxRules {
		filter := fmt.Sprintf("<And><Prefix>%s</Prefix><Tag><Key>a</Key><Value>%d</Value></Tag></And>", strings.Repeat("p", 400), i)
		text.WriteString(rule(fmt.Sprintf("%0255d", i), filter, fmt.Sprintf("<Expiration><Days>%d</Days></Expiration>", maxRules-i)))
	}
	c := config(t, text.String())
	asked := 0
	v := Version{Key: strings.Repeat("p", 500), Modified: at("2014-01-01T10:00:00"), Latest: true, Tags: func() ([]engine.Pair, bool) {
		asked++
		return []engine.Pair{{Name: "a", Value: "999"}}, true
	}}
	if d := c.Decide(v, at("2014-01-03T00:00:00")); d.Action != Expire || d.Rule != fmt.Sprintf("%0255d", 999) || asked != 1 {
		t.Errorf("%+v, and the tags were read %d times", d, asked)
	}
	v.Tags = func() ([]engine.Pair, bool) {
		asked++
		return nil, false
	}
	if d := c.Decide(v, at("2015-01-03T00:00:00")); d.Action != Keep || asked != 2 {
		t.Errorf("tags that cannot be read: %+v, asked %d times", d, asked)
	}
	text.WriteString(rule("one more", "", inThreeDays))
	if _, err := Parse([]byte("<LifecycleConfiguration>" + text.String() + "</LifecycleConfiguration>")); !errors.Is(err, s3err.MalformedXML) {
		t.Errorf("one more rule: %v", err)
	}
}
