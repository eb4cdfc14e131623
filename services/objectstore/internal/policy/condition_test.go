package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestConditions(t *testing.T) {
	values := map[string][]string{
		"aws:sourceip": {"10.1.2.3"}, "aws:currenttime": {"2026-05-01T12:00:00Z"}, "s3:max-keys": {"10"},
		"s3:prefix": {"photos/2026"}, "aws:securetransport": {"false"}, "s3:delimiter": {"a", "b"},
	}
	for _, c := range []struct {
		condition string
		want      bool
	}{
		{`"StringEquals":{"s3:prefix":"photos/2026"}`, true},
		{`"StringEquals":{"s3:prefix":["x","photos/2026"]}`, true},
		{`"StringEquals":{"s3:prefix":"Photos/2026"}`, false},
		{`"StringEqualsIgnoreCase":{"s3:prefix":"Photos/2026"}`, true},
		{`"StringNotEquals":{"s3:prefix":["x","photos/2026"]}`, false},
		{`"StringNotEqualsIgnoreCase":{"s3:prefix":"y"}`, true},
		{`"StringLike":{"s3:prefix":"photos/*"}`, true},
		{`"StringNotLike":{"s3:prefix":"photos/????"}`, false},
		{`"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}`, true},
		{`"IpAddress":{"aws:SourceIp":["192.168.0.0/16","10.1.2.4"]}`, false},
		{`"NotIpAddress":{"aws:SourceIp":"10.1.2.3"}`, false},
		{`"NotIpAddress":{"aws:SourceIp":"2001:db8::/32"}`, true},
		{`"NumericEquals":{"s3:max-keys":10}`, true},
		{`"NumericEquals":{"s3:max-keys":"10.0"}`, true},
		{`"NumericNotEquals":{"s3:max-keys":"10"}`, false},
		{`"NumericLessThan":{"s3:max-keys":"10"}`, false},
		{`"NumericLessThanEquals":{"s3:max-keys":"10"}`, true},
		{`"NumericGreaterThan":{"s3:max-keys":"9"}`, true},
		{`"NumericGreaterThanEquals":{"s3:max-keys":"11"}`, false},
		{`"DateLessThan":{"aws:CurrentTime":"2026-05-01T12:00:01Z"}`, true},
		{`"DateLessThanEquals":{"aws:CurrentTime":"2026-05-01T12:00:00Z"}`, true},
		{`"DateGreaterThan":{"aws:CurrentTime":"2026-05-01T14:00:00+02:00"}`, false},
		{`"DateGreaterThanEquals":{"aws:CurrentTime":"2026-05-01"}`, true},
		{`"DateEquals":{"aws:CurrentTime":"1777636800"}`, true},
		{`"DateNotEquals":{"aws:CurrentTime":"2026-05-01T12:00:00Z"}`, false},
		{`"Bool":{"aws:SecureTransport":false}`, true},
		{`"Bool":{"aws:SecureTransport":"true"}`, false},
		{`"BinaryEquals":{"s3:prefix":"cGhvdG9zLzIwMjY="}`, true},
		{`"BinaryEquals":{"s3:prefix":"eA=="}`, false},
		{`"ArnLike":{"aws:PrincipalArn":"arn:aws:iam::*:user/an*"}`, true},
		{`"ArnNotEquals":{"aws:PrincipalArn":"arn:aws:iam::000000000000:user/anna"}`, false},
		{`"StringEquals":{"aws:username":"anna"}`, true},
		{`"Null":{"s3:prefix":"false"}`, true},
		{`"Null":{"s3:prefix":"true"}`, false},
		{`"Null":{"s3:x-amz-acl":true}`, true},
		// The request lacks the key.
		{`"StringEquals":{"aws:Referer":"x"}`, false},
		{`"StringNotEquals":{"aws:Referer":"x"}`, true},
		{`"StringEqualsIfExists":{"aws:Referer":"x"}`, true},
		{`"NumericLessThanIfExists":{"s3:max-keys":"5"}`, false},
		{`"ForAllValues:StringEquals":{"aws:Referer":"x"}`, true},
		{`"ForAnyValue:StringEquals":{"aws:Referer":"x"}`, false},
		// Several values of the request.
		{`"ForAllValues:StringEquals":{"s3:delimiter":["a","b","c"]}`, true},
		{`"ForAllValues:StringEquals":{"s3:delimiter":["a","c"]}`, false},
		{`"ForAnyValue:StringEquals":{"s3:delimiter":["b","c"]}`, true},
		{`"ForAnyValue:StringNotEquals":{"s3:delimiter":["a"]}`, true},
		{`"ForAllValues:StringNotEquals":{"s3:delimiter":["a"]}`, false},
		// All operators, and all keys of one, must hold.
		{`"Bool":{"aws:SecureTransport":"false"},"NumericEquals":{"s3:max-keys":"11"}`, false},
		{`"StringLike":{"s3:prefix":"photos/*","aws:username":"b*"}`, false},
	} {
		doc, err := Parse(fmt.Appendf(nil, `{"Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:ListBucket","Resource":"arn:aws:s3:::b","Condition":{%s}}]}`, c.condition), "b")
		if err != nil {
			t.Errorf("%s: %v", c.condition, err)
			continue
		}
		got := doc.Decide(Request{User: "anna", Action: "s3:ListBucket", Resource: "arn:aws:s3:::b",
			Lookup: func(key string) []string { return values[strings.ToLower(key)] }})
		if (got == Allow) != c.want {
			t.Errorf("%s: %v, want %v", c.condition, got == Allow, c.want)
		}
	}
}

func TestConditionsThatAreRefused(t *testing.T) {
	for condition, message := range map[string]string{
		`"stringequals":{"s3:prefix":"x"}`:                     "Invalid Condition type : stringequals",
		`"NullIfExists":{"s3:prefix":"true"}`:                  "Invalid Condition type : NullIfExists",
		`"ForSomeValues:StringEquals":{"s3:prefix":"x"}`:       "Invalid Condition type : ForSomeValues:StringEquals",
		`"StringEquals":{"aws:MultiFactorAuthPresent":"true"}`: "Policy has an invalid condition key",
		`"IpAddress":{"aws:SourceIp":"10.0.0.1/40"}`:           "Invalid IP address in Conditions",
		`"StringEquals":{"aws:SourceIp":"here"}`:               "Invalid IP address in Conditions",
		`"Null":{"aws:SourceIp":"true"}`:                       "Invalid IP address in Conditions",
		`"NumericEquals":{"s3:max-keys":"ten"}`:                "Invalid value in Conditions",
		`"NumericEquals":{"s3:max-keys":"1e999999999"}`:        "Invalid value in Conditions",
		`"DateLessThan":{"aws:CurrentTime":"tomorrow"}`:        "Invalid value in Conditions",
		`"Bool":{"aws:SecureTransport":"yes"}`:                 "Invalid value in Conditions",
		`"StringEquals":{"s3:prefix":[]}`:                      "This policy contains invalid Json",
	} {
		_, err := Parse(fmt.Appendf(nil, `{"Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:ListBucket","Resource":"arn:aws:s3:::b","Condition":{%s}}]}`, condition), "b")
		if bad, ok := err.(*Error); !ok || bad.Message != message {
			t.Errorf("%s: %v", condition, err)
		}
	}
}

// What would not do what it says is refused when it is set, and stays in force when it is stored.
func TestPoliciesWithoutSense(t *testing.T) {
	known := func(user string) bool { return user == "anna" }
	for _, c := range []struct{ statement, message string }{
		{`"Principal":{"AWS":["anna","arn:aws:iam::000000000000:user/anna"]},"Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*"`, ""},
		{`"Principal":"*","Action":["S3:getobject","s3:Put*"],"Resource":"arn:aws:s3:::b/*"`, ""},
		{`"Principal":"*","Action":"s3:*","Resource":["arn:aws:s3:::b"]`, ""},
		{`"Principal":"*","Action":"*","Resource":["arn:aws:s3:::b/*"]`, ""},
		{`"Principal":"*","Action":"s3:List*","Resource":"arn:aws:s3:::b"`, ""},
		{`"Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::b/*","Condition":{"Null":{"s3:if-none-match":"true"}}`, ""},
		{`"Principal":"berta","Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*"`, "Invalid principal in policy"},
		{`"Principal":"*","Action":"s3:GetObjekt","Resource":"arn:aws:s3:::b/*"`, "Policy has invalid action"},
		{`"Principal":"*","Action":"*Object","Resource":"arn:aws:s3:::b/*"`, "Policy has invalid action"},
		{`"Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::b"`, "Action does not apply to any resource(s) in statement"},
		{`"Principal":"*","Action":"s3:ListBucket","Resource":"arn:aws:s3:::b/*"`, "Action does not apply to any resource(s) in statement"},
		{`"Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::b/${aws:username}/*"`, "Policy has invalid resource"},
		{`"Principal":"*","Action":["s3:GetObject","s3:PutObject"],"Resource":"arn:aws:s3:::b/*","Condition":{"StringEquals":{"s3:x-amz-acl":"private"}}`, "Conditions do not apply to combination of actions and resources in statement"},
		{`"Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*","Condition":{"StringEquals":{"aws:UserAgent":"${aws:username}"}}`, "Invalid value in Conditions"},
	} {
		text := []byte(`{"Statement":[{"Effect":"Allow",` + c.statement + `}]}`)
		message := ""
		if _, err := ParseNew(text, "b", known); err != nil {
			message = err.(*Error).Message
		}
		if message != c.message {
			t.Errorf("%s: %q, want %q", c.statement, message, c.message)
		}
		if _, err := Parse(text, "b"); err != nil {
			t.Errorf("%s, stored: %v", c.statement, err)
		}
	}
}

func TestActionsAreOfOneKind(t *testing.T) {
	for _, a := range objectActions {
		if slices.Contains(bucketActions, a) {
			t.Errorf("%s is both", a)
		}
	}
}

func TestPublicPolicies(t *testing.T) {
	for _, c := range []struct {
		statement string
		public    bool
	}{
		{`"Effect":"Allow","Principal":"*","Action":"s3:GetObject"`, true},
		{`"Effect":"Allow","Principal":{"AWS":"*"},"Action":"s3:GetObject"`, true},
		{`"Effect":"Deny","Principal":"*","Action":"s3:GetObject"`, false},
		{`"Effect":"Allow","Principal":"anna","Action":"s3:GetObject"`, false},
		{`"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Condition":{"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}}`, false},
		{`"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Condition":{"IpAddress":{"aws:SourceIp":["10.0.0.0/8","0.0.0.0/1"]}}`, true},
		{`"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Condition":{"IpAddress":{"aws:SourceIp":"2000::/3"}}`, true},
		{`"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Condition":{"NotIpAddress":{"aws:SourceIp":"10.0.0.0/8"}}`, true},
		{`"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Condition":{"StringEquals":{"aws:username":"anna"}}`, false},
		{`"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Condition":{"StringLike":{"aws:username":"*"}}`, true},
		{`"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Condition":{"StringEqualsIfExists":{"aws:username":"anna"}}`, true},
		{`"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Condition":{"StringEquals":{"aws:Referer":"http://x"}}`, true},
	} {
		doc, err := Parse([]byte(`{"Statement":[{`+c.statement+`,"Resource":"arn:aws:s3:::b/*"}]}`), "b")
		if err != nil {
			t.Fatalf("%s: %v", c.statement, err)
		}
		if doc.IsPublic() != c.public {
			t.Errorf("%s: public %v, want %v", c.statement, doc.IsPublic(), c.public)
		}
	}
}

// What the decoder would drop, or compare as it is written, is refused.
func TestPoliciesThatWouldNotDoWhatTheySay(t *testing.T) {
	known := func(string) bool { return true }
	statement := func(more string) string {
		return `{"Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":["arn:aws:s3:::b","arn:aws:s3:::b/*"]` + more + `}]}`
	}
	for _, more := range []string{
		`,"Condition":{"StringEquals":{"s3:prefix":"a"},"StringEquals":{"aws:username":"u"}}`,
		`,"Condition":{"StringEquals":{"s3:prefix":"a","s3:prefix":"b"}}`,
		`,"Condition":{"StringEquals":{"s3:prefix":"a"}},"Condition":{"Bool":{"aws:SecureTransport":"false"}}`,
		`,"effect":"Allow"`,
		`,"Condition":{"StringNotEquals":{"s3:prefix":"${aws:username}"}}`,
		`,"Condition":{"StringNotEquals":{"s3:prefix":["home","${aws:username}"]}}`,
	} {
		if doc, err := ParseNew([]byte(statement(more)), "b", known); err == nil {
			t.Errorf("%s was taken: %+v", more, doc)
		}
		if _, err := Parse([]byte(statement(more)), "b"); err != nil {
			t.Errorf("%s of a policy that is stored: %v", more, err)
		}
	}
	if _, err := ParseNew([]byte(`{"Statement":[],`+statement("")[1:]), "b", known); err == nil {
		t.Error("two lists of statements were taken")
	}
	if _, err := Parse([]byte(`{"Statement":[{"Effect":"Deny","Action":"s3:*","Resource":"arn:aws:s3:::b/${aws:username}/*"}]}`), ""); err == nil {
		t.Error("a variable in a user's policy was taken")
	}
	for _, more := range []string{"", `,"Condition":{"StringEquals":{"s3:prefix":["a","a"]},"StringLike":{"s3:prefix":"a"}},"Sid":"Sid"`} {
		if _, err := ParseNew([]byte(statement(more)), "b", known); err != nil {
			t.Errorf("%s: %v", more, err)
		}
	}
}
