import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/** Kafka's command-line tools, one after the other in one Java: a line of JSON for each, and one back. */
public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream NOWHERE = new PrintStream(OutputStream.nullOutputStream());

    /** Ends a tool where it would have ended its Java. */
    private static final class Ended extends Error {
        Ended() {
            super("it has ended", null, false, false);
        }
    }

    private final PrintStream out;
    private final PrintStream err;
    private final List<Runnable> hooks = new ArrayList<>();
    private Integer code;

    private Tools(PrintStream out, PrintStream err) {
        this.out = out;
        this.err = err;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode wanted = JSON.readTree(line);
            System.setIn(new ByteArrayInputStream(wanted.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            Tools one = new Tools(printing(out), printing(err));
            one.run(wanted.get("main").asText(), JSON.convertValue(wanted.get("arguments"), String[].class));
            answers.println(JSON.writeValueAsString(Map.of(
                "code", one.code,
                "out", out.toString(StandardCharsets.UTF_8),
                "err", err.toString(StandardCharsets.UTF_8))));
        }
        Runtime.getRuntime().halt(0); // without waiting for what a tool left open
    }

    private static PrintStream printing(OutputStream to) {
        return new PrintStream(to, true, StandardCharsets.UTF_8);
    }

    private void run(String name, String[] arguments) throws Exception {
        Exit.setExitProcedure((status, message) -> end(status));
        Exit.setHaltProcedure((status, message) -> end(status));
        Exit.setShutdownHookAdder((hook, work) -> hooks.add(work));
        System.setOut(out);
        System.setErr(err);
        Method tool = Class.forName(name).getMethod("main", String[].class);
        try {
            tool.invoke(null, (Object) arguments);
        } catch (InvocationTargetException raised) {
            if (code == null) { // as Java itself ends by it
                err.print("Exception in thread \"main\" ");
                raised.getCause().printStackTrace(err);
                code = 1;
            }
        }
        if (code == null) {
            code = 0;
        }
        System.setOut(out);
        System.setErr(err);
        hooks.forEach(Runnable::run);
        System.setOut(NOWHERE);
        System.setErr(NOWHERE);
    }

    /** The first word counts: what a tool does with Ended on its way out is not seen. */
    private void end(int status) {
        if (code == null) {
            code = status;
            System.setOut(NOWHERE);
            System.setErr(NOWHERE);
        }
        throw new Ended();
    }
}
